"""What the vulkan backend says of a machine: missing parts, the order of cards, and limits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clover_rt_vulkan
from clover_rt.errors import BackendUnavailable
from clover_rt.plugins import choose
from clover_rt_vulkan import find
from clover_rt_vulkan.backend import VulkanBackend
from clover_rt_vulkan.driver import DriverFailure, Limits, Trouble

LIMITS = Limits(
    alignment=64,
    binding=(1 << 32) - 1,
    allocation=1 << 31,
    bindings=200,
    push=256,
    shared=64 << 10,
    items=1024,
    groups=(65535, 65535, 65535),
    subgroup=32,
)


def card(name: str, kind: str = "discrete", **given: Any) -> Any:
    from clover_rt_vulkan.driver.cards import Card

    made = Card(
        handle=None,
        name=name,
        kind=kind,
        api=(1, 3),
        driver="a driver 1.0",
        uuid="00" * 16,
        pci="0000:03:00.0",
        family=0,
        clock_bits=64,
        tick_ns=1.0,
        memory_bytes=1 << 34,
        limits=LIMITS,
        features=frozenset(),
        extensions=frozenset(),
        cache_id="",
    )
    return replace(made, **given)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return found(*cards) -> the backend's probe of a machine with these."""
    from clover_rt_vulkan.driver import cards

    def probe(*listed: Any) -> Any:
        monkeypatch.setattr(cards, "cards", lambda instance: list(listed))
        return VulkanBackend().probe()

    return probe


def probe_with(variables: dict[str, str]) -> str:
    """Return what a new process prints of its probe, with these variables."""
    code = (
        "from clover_rt_vulkan.find import probe; p = probe(); "
        "print(len(p.devices), p.problem, '|', p.fix)"
    )
    plain = {k: v for k, v in os.environ.items() if k not in find.NAMING}
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_the_package_the_probe_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    probe = VulkanBackend().probe()
    assert probe.devices == ()
    assert "package vulkan is not installed" in probe.problem
    assert "pip install" in probe.fix


def test_without_a_loader_the_probe_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package raises OSError at its import where it finds no loader."""
    for name in [n for n in sys.modules if n.split(".")[0] == "vulkan"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n in sys.modules if n.startswith("clover_rt_vulkan.driver.")]:
        monkeypatch.delitem(sys.modules, name)
    driver = sys.modules["clover_rt_vulkan.driver"]
    for name in ("cards", "vk"):
        monkeypatch.delattr(driver, name, raising=False)

    class NoLoader:
        def find_spec(self, name: str, *_: Any) -> Any:
            if name == "vulkan":
                raise OSError("Cannot find Vulkan SDK version.")
            return None

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "meta_path", [NoLoader(), *sys.meta_path])
    probe = VulkanBackend().probe()
    assert "no Vulkan loader" in probe.problem
    assert "libvulkan1" in probe.fix


def test_a_machine_without_drivers_is_told_which_files_were_read(tmp_path: Path) -> None:
    told = probe_with({"VK_DRIVER_FILES": str(tmp_path / "none.json")})
    assert told.startswith("0 no Vulkan driver answers")
    assert f"VK_DRIVER_FILES={tmp_path}/none.json" in told
    assert "install your card's Vulkan driver" in told


@pytest.mark.parametrize("library", ["missing.so", "broken.so"])
def test_a_driver_that_cannot_be_loaded_is_a_problem_and_no_error(
    tmp_path: Path, library: str
) -> None:
    (tmp_path / "broken.so").write_text("no library")
    icd = tmp_path / "icd.json"
    icd.write_text(
        '{"file_format_version": "1.0.0", "ICD": {"library_path": '
        f'"{tmp_path / library}", "api_version": "1.3.0"}}}}'
    )
    told = probe_with({"VK_DRIVER_FILES": str(icd)})
    assert told.startswith("0 no Vulkan driver answers") and str(icd) in told


def test_a_driver_that_fails_is_a_problem_and_no_error(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover_rt_vulkan.driver import cards

    def failed(instance: Any) -> Any:
        raise DriverFailure(
            Trouble.OTHER, "vkEnumeratePhysicalDevices", "VK_ERROR_INITIALIZATION_FAILED"
        )

    monkeypatch.setattr(cards, "cards", failed)
    probe = VulkanBackend().probe()
    assert "VK_ERROR_INITIALIZATION_FAILED" in probe.problem and probe.fix


def test_a_machine_without_devices_is_told_so(found: Any) -> None:
    assert found().problem.startswith("no Vulkan device; driver files: ")


def test_a_driver_that_there_is_not_is_told_with_those_that_there_are(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(find.VARIABLE, "komput")
    probe = found(card("a card"))
    assert probe.devices == ()
    assert probe.problem == f"{find.VARIABLE}=komput is no driver; drivers: raw, kompute"
    assert probe.fix


@pytest.mark.parametrize("chosen", ["", "raw"])
def test_the_raw_driver_is_the_default_and_is_shown(
    found: Any, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv(find.VARIABLE, chosen)
    (info,) = found(card("a card", features=frozenset({"int8_dot"}))).devices
    assert info.notes["engine"] == "vulkan, raw bindings"
    assert info.notes["features"] == "int8_dot"


def test_kompute_is_taken_where_it_is_asked_for_and_is_shown(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the shaders may use: it enables no feature."""
    spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "kp" or spec(name))
    monkeypatch.setitem(sys.modules, "kp", SimpleNamespace(__version__="0.9.0"))
    monkeypatch.setenv(find.VARIABLE, "kompute")
    (info,) = found(card("a card", features=frozenset({"int8_dot"}))).devices
    assert info.notes["engine"] == "vulkan, Kompute 0.9.0"
    assert info.notes["features"] == "none"


@pytest.mark.parametrize(
    ("module", "told"),
    [
        pytest.param(None, "the package kp is not installed", id="absent"),
        pytest.param(
            "raise ImportError('libfmt.so.9: cannot open shared object file')",
            "the package kp cannot be imported: libfmt.so.9: cannot open shared object file",
            id="without its library",
        ),
        pytest.param("__version__ = '0.8.1'", "kp is 0.8.1, 0.9 is needed", id="another version"),
    ],
)
def test_a_kp_that_cannot_be_used_is_one_finding_with_what_builds_it(
    found: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str | None, told: str
) -> None:
    monkeypatch.delitem(sys.modules, "kp", raising=False)
    spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: module if name == "kp" else spec(name)
    )
    if module is not None:
        (tmp_path / "kp.py").write_text(module)
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(find.VARIABLE, "kompute")
    probe = found(card("a card"))
    sys.modules.pop("kp", None)
    assert probe.devices == ()
    assert probe.problem == f"{find.VARIABLE}=kompute, and {told}"
    assert "clover_rt_vulkan.driver.build_kompute" in probe.fix
    assert "apt-get install cmake make g++ python3-dev libvulkan-dev libfmt-dev" in probe.fix


def test_loading_the_plugin_imports_no_device_library() -> None:
    code = (
        "import sys, clover_rt_vulkan; clover_rt_vulkan.clover_rt_backends(); "
        "sys.exit('vulkan' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_hook_returns_the_backend() -> None:
    (backend,) = clover_rt_vulkan.clover_rt_backends()
    assert (backend.name, backend.api) == ("vulkan", (1, 2))


def test_a_card_of_its_own_comes_first_and_software_needs_its_name(found: Any) -> None:
    probe = found(
        card("llvmpipe (LLVM 15.0.6, 256 bits)", "cpu"),
        card("a processor's graphics", "integrated"),
        card("a card"),
        card("another card"),
    )
    assert [d.id for d in probe.devices] == ["vulkan:0", "vulkan:1", "vulkan:2", "llvmpipe"]
    assert choose("vulkan", probe, None).name == "a card"
    assert choose("vulkan", probe, "vulkan:2").kind == "integrated"
    assert choose("vulkan", probe, "llvmpipe").is_software


def test_software_alone_is_not_taken_by_itself(found: Any) -> None:
    probe = found(card("llvmpipe (LLVM 15.0.6, 256 bits)", "cpu"))
    with pytest.raises(BackendUnavailable, match="--device llvmpipe"):
        choose("vulkan", probe, None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"family": -1}, "none of its queues computes"),
        ({"api": (1, 1)}, "it has Vulkan 1.1, 1.2 is needed"),
        ({"limits": replace(LIMITS, bindings=4)}, "its limit bindings is 4, 12 is needed"),
        ({"limits": replace(LIMITS, push=64)}, "its limit push is 64, 128 is needed"),
        ({"limits": replace(LIMITS, items=64)}, "its limit items is 64, 128 is needed"),
        ({"limits": replace(LIMITS, shared=8192)}, "its limit shared is 8192, 16384 is needed"),
    ],
)
def test_a_device_that_cannot_run_the_shaders_is_left_out_with_the_reason(
    found: Any, given: dict[str, Any], told: str
) -> None:
    assert f"an old card: {told}" in found(card("an old card", **given)).problem
    # beside one that can be used it is only left out
    assert [d.name for d in found(card("an old card", **given), card("a card")).devices] == [
        "a card"
    ]


def test_the_limits_asked_for_are_enough_for_every_shader() -> None:
    from clover_rt_vulkan.library import Library

    shaders = Library().shaders.values()
    assert max(len(s.buffers) for s in shaders) <= find.LEAST["bindings"]
    assert max(4 * len(s.push) for s in shaders) <= find.LEAST["push"]


def test_a_device_that_has_gone_is_refused_with_what_is_left(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover_rt_vulkan.driver import cards

    (info,) = found(card("a card")).devices
    monkeypatch.setattr(cards, "cards", lambda instance: [])
    with pytest.raises(BackendUnavailable, match="there are 0 Vulkan devices now") as caught:
        VulkanBackend().open(info)
    assert caught.value.code == "CRT-3013"


def test_a_card_whose_driver_fails_at_opening_names_the_driver(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover_rt_vulkan.driver import raw

    (info,) = found(card("a card")).devices

    def failed(card: Any) -> Any:
        raise DriverFailure(Trouble.OTHER, "vkCreateDevice", "VK_ERROR_INITIALIZATION_FAILED")

    monkeypatch.setattr(raw, "_open", failed)
    with pytest.raises(BackendUnavailable, match="a driver 1.0, failed: vkCreateDevice") as caught:
        VulkanBackend().open(info)
    assert caught.value.code == "CRT-3014"
