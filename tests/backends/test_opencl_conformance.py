"""The OpenCL engine in the suite: hot ops and a golden run in the usual lane, the rest in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

import clover_rt_conformance
from clover_rt.backend import Device
from clover_rt.cli import main
from clover_rt.ops import HOT, expert_gemm
from clover_rt.spec import Precision
from clover_rt_conformance.harness import try_case
from tests.backends.opencl_devices import opencl_device, opencl_index


class OnOpenCl(clover_rt_conformance.Suite):
    """Runs in the tests' process, which keeps its compiled programs from case to case."""

    backend = "rocm"
    precision = "exact"
    require: ClassVar[tuple[str, ...]] = HOT

    @classmethod
    def open_device(cls) -> Device:
        handle = opencl_device()
        from clover_rt_rocm.opencl.device import ClDevice

        return ClDevice(handle)


class TestHotOps(OnOpenCl):
    cases: ClassVar[tuple[str, ...]] = (
        "device/copies",
        "device/new-memory-is-zero",
        "expert_gemm/q4-32/T=[017]/spread",
        "expert_gemm/q4-32/T=33/*",
        "expert_gemm/256-experts",
        "block_scan/H=4,K=16,V=24/*",
        "block_scan/equal-keys-kept/*",
        "confidence_topk/f32/*",
    )


class TestAGoldenRun(OnOpenCl):
    cases: ClassVar[tuple[str, ...]] = ("model/clover_tiny/decode/short/release/diffusion_t03",)


@pytest.mark.parametrize("name", ["f32/T=33/spread", "q4-32/T=7/one-expert", "f32/T=0/spread"])
def test_the_many_row_form_of_experts_is_right_at_few_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite's cases have too few rows for it."""
    device = OnOpenCl.open_device()
    from clover_rt_rocm.opencl.kernels import expert_gemm as chosen

    monkeypatch.setattr(chosen, "MOST_FEW", 0)
    case = next(c for c in expert_gemm.SPEC.cases() if c.id == f"expert_gemm/{name}")
    verdict = try_case(device, expert_gemm.SPEC, case, Precision.EXACT, 0, 2)
    device.close()
    assert [str(problem) for problem in verdict.problems] == []


@pytest.mark.full
def test_everything_that_is_tried_is_right_and_nothing_is_declined(tmp_path: Path) -> None:
    target = tmp_path / "opencl.json"
    words = ["conformance", "--backend", "rocm", "--device", f"opencl:{opencl_index()}"]
    code = main([*words, "--lane", "full", "--require", "hot", "--json", str(target)])
    told = json.loads(target.read_text())
    assert told["failures"] == [] and told["problems"] == []
    assert told["declined"] == {}
    assert code == 0
