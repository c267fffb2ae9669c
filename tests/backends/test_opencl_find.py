"""What the rocm backend says of OpenCL: missing parts, AMD cards, and devices used only by name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clover_rt_rocm
from clover_rt.errors import BackendUnavailable
from clover_rt.plugins import choose
from clover_rt_rocm.backend import RocmBackend
from clover_rt_rocm.opencl import find
from clover_rt_rocm.variables import VISIBILITY

GPU, CPU = 4, 2


def device(name: str, kind: int = GPU, vendor: int = 0x1002, shared: bool = False) -> Any:
    """Return what find reads of a pyopencl device."""
    return SimpleNamespace(
        name=name,
        type=kind,
        vendor_id=vendor,
        vendor="Advanced Micro Devices, Inc." if vendor == 0x1002 else "Other",
        global_mem_size=1 << 34,
        host_unified_memory=shared,
        driver_version="1.0",
        extensions="cl_khr_fp64",
        platform=SimpleNamespace(name="A platform", version="OpenCL 2.0"),
    )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return found(platform name=[devices], ...) -> the backend's probe."""

    for name in VISIBILITY:
        monkeypatch.delenv(name, raising=False)

    def probe(**platforms: list[Any]) -> Any:
        monkeypatch.setattr(find, "platforms", lambda: list(platforms.items()))
        return RocmBackend().probe()

    return probe


def test_without_pyopencl_the_probe_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    probe = RocmBackend().probe()
    assert probe.devices == ()
    assert "pyopencl is not installed" in probe.problem
    assert "pip install" in probe.fix


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('bad symbol')", "cannot be imported: RuntimeError: bad symbol"),
        ("", "is empty"),
    ],
    ids=["raises", "empty"],
)
def test_a_pyopencl_that_is_broken_is_told_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    (tmp_path / "pyopencl.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [n for n in sys.modules if n.partition(".")[0] == "pyopencl"]:
        monkeypatch.delitem(sys.modules, name)
    probe = find.probe()
    # delitem does not take away what was imported since
    sys.modules.pop("pyopencl", None)
    assert probe.problem == f"pyopencl {says}"
    assert probe.fix == "pip install --force-reinstall pyopencl"


def test_loading_the_plugin_imports_no_device_library() -> None:
    code = (
        "import sys, clover_rt_rocm; clover_rt_rocm.clover_rt_backends(); "
        "sys.exit('pyopencl' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_hook_returns_the_backend() -> None:
    (backend,) = clover_rt_rocm.clover_rt_backends()
    assert (backend.name, backend.api) == ("rocm", (1, 1))


def test_a_machine_without_drivers_is_told_so(found: Any) -> None:
    assert "no OpenCL platform" in found().problem


def test_a_platform_without_devices_is_named(found: Any) -> None:
    probe = found(Clover=[])
    assert probe.problem.endswith("; OpenCL: no OpenCL device; platforms: Clover")
    assert probe.fix


def test_a_loader_that_raises_is_a_problem_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:

    def broken() -> Any:
        raise OSError("libamdocl64.so: cannot open shared object file")

    monkeypatch.setattr(find, "platforms", broken)
    problem = RocmBackend().probe().problem
    assert "; OpenCL: devices cannot be asked for: OSError: libamdocl64.so" in problem


def test_an_amd_card_is_the_default_and_other_devices_need_their_name(found: Any) -> None:
    probe = found(
        Pocl=[device("a processor", CPU, 0x6C636F70)],
        Other=[device("a GeForce", vendor=0x10DE)],
        AMD=[device("gfx1201")],
    )
    assert choose("rocm", probe, None).name == "gfx1201"
    assert choose("rocm", probe, "opencl:0").name == "a processor"
    geforce = choose("rocm", probe, "opencl:1")
    assert (geforce.kind, geforce.is_software) == ("discrete", False)
    assert geforce.only_by_name == "it is not an AMD GPU"


def test_notes_tell_what_a_device_does_not_announce(found: Any) -> None:
    (info,) = found(AMD=[device("gfx1201")]).devices
    assert {info.notes[name] for name in ("int dot", "subgroups", "fp16")} == {"not announced"}


def test_a_card_of_its_own_comes_before_a_processors_graphics(found: Any) -> None:
    probe = found(AMD=[device("gfx1036", shared=True), device("gfx1100")])
    assert [d.id for d in probe.devices] == ["opencl:1", "opencl:0"]
    assert "part of a processor" in probe.devices[1].only_by_name


def test_a_processors_graphics_alone_is_refused_with_how_to_ask_for_it(found: Any) -> None:
    probe = found(AMD=[device("gfx1151", shared=True)])
    with pytest.raises(BackendUnavailable, match="it is part of a processor") as caught:
        choose("rocm", probe, None)
    assert caught.value.fix == "name one to use it: --device opencl:0"
    assert choose("rocm", probe, "opencl:0").kind == "integrated"


def test_with_only_other_devices_the_error_names_one(found: Any) -> None:
    probe = found(Pocl=[device("a processor", CPU, 0x6C636F70)])
    with pytest.raises(BackendUnavailable, match="--device opencl:0"):
        choose("rocm", probe, None)


def test_a_device_that_has_gone_is_refused_with_what_is_left(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (info,) = found(AMD=[device("gfx1100")]).devices
    monkeypatch.setattr(find, "platforms", lambda: [])
    with pytest.raises(BackendUnavailable, match="there are 0 OpenCL devices now"):
        RocmBackend().open(info)
