"""The OpenCL engine in the suite: hot ops and a golden run in the usual lane, the rest in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

import clover_rt_conformance
from clover_rt.backend import Device
from clover_rt.cli import main
from clover_rt.ops import HOT, expert_gemm
from clover_rt.spec import Precision
from clover_rt_conformance.harness import try_case
from tests.backends.opencl_devices import ALONE, PLAIN_DOT, opencl_device, opencl_index


class OnOpenCl(clover_rt_conformance.Suite):
    """Runs in the tests' process, which keeps its compiled programs from case to case."""

    backend = "rocm"
    precision = "exact"
    require: ClassVar[tuple[str, ...]] = HOT
    capabilities: ClassVar[dict[str, str]] = {}

    @classmethod
    def open_device(cls) -> Device:
        handle = opencl_device()
        from clover_rt_rocm.opencl.capabilities import Capabilities
        from clover_rt_rocm.opencl.device import ClDevice

        given = Capabilities(**cls.capabilities) if cls.capabilities else None
        return ClDevice(handle, capabilities=given)


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


class TestRowsIn8Bits(OnOpenCl):
    """In `fast`, many rows are rounded where there are integer dots."""

    precision = "fast"
    require: ClassVar[tuple[str, ...]] = ("linear", "expert_gemm")
    capabilities: ClassVar[dict[str, str]] = {"int_dot": PLAIN_DOT}
    cases: ClassVar[tuple[str, ...]] = (
        "linear/q8/T=31,*",
        "linear/q4-32/T=7,N=63,K=192*",
        "linear/q4-*/identity",
        "expert_gemm/q4-32/T=33/shared",
    )


class TestSubgroups(OnOpenCl):
    """Sums of few rows and of norms by subgroups."""

    require: ClassVar[tuple[str, ...]] = ("linear", "rms_norm")
    capabilities: ClassVar[dict[str, str]] = {"subgroups": ALONE}
    cases: ClassVar[tuple[str, ...]] = (
        "linear/q4-32/T=1,*",
        "rms_norm/G=2,*",
        "block_memory/H=4,K=16,V=24/preview3[123]",
    )


class TestAGoldenRun(OnOpenCl):
    cases: ClassVar[tuple[str, ...]] = ("model/clover_tiny/decode/short/release/diffusion_t03",)


def test_the_prompt_of_the_readme_gets_the_tokens_of_the_cpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tokens(*words: str) -> list[int]:
        code = main(
            ["run", "--json", "--precision", "exact", *words, "Sort these numbers: 41, 7, 23."]
        )
        assert code == 0
        end: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return list(end["tokens"])

    expected = tokens("--backend", "cpu")
    assert expected
    assert tokens("--backend", "rocm", "--device", f"opencl:{opencl_index()}") == expected


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
