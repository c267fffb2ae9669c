"""What doctor says of caches, tuning tables and builds of torch is what clover-rt goes by."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from clover_rt.backend import DeviceInfo
from clover_rt.cache import cache_folder
from clover_rt.doctor import examine, render
from clover_rt.doctor.host import Host
from clover_rt.doctor.kernels import tuning
from clover_rt.doctor.storage import folders
from clover_rt_cuda.tuning import Tuning
from tests.toy import ToyDevice
from tests.unit.doctor_machines import KERNELS, Machine, amd, nvidia, torch


@pytest.mark.parametrize("moved", ["", "/data/cache", "not/absolute"])
def test_the_cache_is_the_folder_that_kernels_go_to(moved, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", moved)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    found = folders(Host.here())
    assert set(found) == {"XDG_CACHE_HOME", "TMPDIR"}
    for kind in ("triton", "opencl", "vulkan", "cpu"):
        assert cache_folder(kind).parent == Path(found["XDG_CACHE_HOME"])


def test_a_cache_of_triton_that_was_moved_is_told_too(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/data/triton")
    assert folders(Host.here())["TRITON_CACHE_DIR"] == "/data/triton"


def device(arch, is_software=False):
    made = ToyDevice("toy")
    made.arch, made.tuning = arch, Tuning.of(arch)
    made.info = DeviceInfo("toy", "toy", is_software=is_software)
    return made


def test_a_card_tells_its_tuning_table_or_that_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert tuning(device("sm_0")) == {"arch": "sm_0", "table": ""}
    assert Path(tuning(device("sm_90"))["table"]).name == "sm_90.json"


def test_what_takes_no_table_has_nothing_to_tell():
    assert tuning(ToyDevice("toy")) is None
    assert tuning(device("interpreter", is_software=True)) is None
    odd = ToyDevice("toy")
    odd.tuning = SimpleNamespace()
    assert tuning(odd) is None


@pytest.mark.parametrize(("table", "codes"), [("", ["CRT-5808"]), ("/a/gfx1201.json", [])])
def test_a_card_without_a_tuning_table_is_worth_knowing_and_no_more(table, codes, tmp_path):
    answer = {**KERNELS, "tuning": {"arch": "gfx1201", "table": table}}
    machine = amd() + Machine(children={"kernels rocm": answer})
    report = examine(machine.host(tmp_path))
    assert [f["code"] for f in report["findings"]] == codes
    assert report["exit_code"] == 0
    assert all("gfx1201.json" in f["remedy"] for f in report["findings"])
    assert "gfx1201.json" in render(report)


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        (amd() + torch(hip="6.2", arch=["gfx1100"]), "ROCm"),
        (amd() + torch(version="2.13.0+cpu"), "ROCm"),
        (nvidia() + torch(cuda="13.0", arch=["sm_80"]), "CUDA"),
    ],
)
def test_a_torch_that_does_not_fit_points_to_torchs_own_selector(machine, kind, tmp_path):
    (found,) = examine(machine.host(tmp_path))["findings"]
    assert "https://pytorch.org/get-started/locally/" in found["remedy"]
    assert kind in found["remedy"]
    # versions in the names of package indexes come and go
    assert "whl" not in found["remedy"]
