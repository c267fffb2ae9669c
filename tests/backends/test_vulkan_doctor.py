"""What `clover-rt doctor --backend vulkan` tries alone: each shader, where a crash is harmless."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clover_rt.doctor import backends, child, trials
from clover_rt.doctor.host import Host, _run
from clover_rt.errors import BackendUnavailable
from tests.backends.vulkan_devices import open_vulkan

# a driver that crashes at one shader, refuses another, hangs at a third, and compiles nothing
BAD_DRIVER = """
import os, signal, sys, time
from clover_rt.doctor import child, trials
from clover_rt_vulkan.device import VulkanDevice

def compiled(self, shader, constants):
    if shader.name == "attend":
        os.kill(os.getpid(), signal.SIGSEGV)
    if shader.name == "combine":
        raise ValueError("two" + chr(10) + "lines")
    if shader.name == "rope":
        time.sleep(60)

trials.TRIAL_S = 3
VulkanDevice._compile = compiled
sys.exit(child.main(sys.argv[1:]))
"""


@pytest.fixture
def device() -> Iterator[Any]:
    opened = open_vulkan()
    yield opened
    opened.close()


def test_every_shader_is_tried_once_for_each_format_that_its_weights_may_have(device: Any) -> None:
    names = device.trials()
    for name, shader in device.library.shaders.items():
        found = [n for n in names if n == f"shader {name}" or n.startswith(f"shader {name} with ")]
        usable = shader.requires <= device.driver.features
        weighted = any(constant.endswith("_FORMAT") for constant in shader.constants)
        formats = 2 if name.endswith("_int8") else 5
        assert len(found) == (0 if not usable else formats if weighted else 1), name
    assert "shader output_gate" in names and "shader linear_few with q4 weights" in names


def test_a_trial_compiles_its_shader(device: Any, tmp_path: Path) -> None:
    before = device.driver.pipelines.compiled
    device.trials()["shader output_gate"]()
    assert device.driver.pipelines.compiled == before + 1


@pytest.mark.parametrize(("damage", "code"), [("altered", "CRT-3531"), ("missing", "CRT-3530")])
def test_a_trial_of_a_damaged_shader_names_it(
    device: Any, tmp_path: Path, damage: str, code: str
) -> None:
    from clover_rt_vulkan.library import SPIRV, Library

    shutil.copytree(SPIRV, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "output_gate.spv"
    if damage == "altered":
        path.write_bytes(path.read_bytes()[:-4] + bytes(4))
    else:
        path.unlink()
    device.library = Library(tmp_path)
    with pytest.raises(BackendUnavailable, match="output_gate") as caught:
        device.trials()["shader output_gate"]()
    assert caught.value.code == code


def test_a_driver_that_crashes_is_named_with_its_shader_and_the_rest_goes_on(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(device.trials())
    monkeypatch.setattr(trials, "TRIAL_S", 3)
    host = replace(
        Host.here(),
        child=lambda args, env, s: _run([sys.executable, "-c", BAD_DRIVER, *args], env, s),
    )
    row = {"backend": "vulkan", "device": "llvmpipe"}
    (found,) = backends.alone(host, row)
    assert row["tried_alone"] == count
    assert sorted(row["problems"]) == [
        "shader attend: ended by signal SIGSEGV",
        "shader combine: two lines",
        "shader rope: took more than 3 s",
    ]
    assert found.code == "CRT-5807"
    assert found.evidence.startswith("vulkan on llvmpipe: shader ")
    assert "shader attend: ended by signal SIGSEGV" in found.evidence


def test_only_a_backend_of_an_api_with_trials_is_asked_for_them() -> None:
    assert [trials.may_have(api) for api in ("", "1.0", "1.1", "1.2", "1.10", "2.0")] == [
        *(False, False, False),
        *(True, True, True),
    ]


def test_an_error_of_a_child_is_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged() -> Any:
        raise BackendUnavailable("index.json was to be read", "/a/index.json:\nno such file", "x")

    monkeypatch.setitem(child.QUESTIONS, "kernels", damaged)
    assert child.main(["kernels"]) == BackendUnavailable.exit_code
    told = capsys.readouterr().err.splitlines()
    assert told == ["CRT-3000: index.json was to be read: /a/index.json: no such file"]
