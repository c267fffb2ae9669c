"""The vulkan backend in the suite: hot ops and a golden run in the usual lane, the rest in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

import clover_rt_conformance
from clover_rt.backend import Device
from clover_rt.cli import main
from clover_rt.ops import HOT, OPS
from clover_rt.spec import Precision
from clover_rt_conformance.harness import try_case
from tests.backends.vulkan_devices import HOT_CASES, open_vulkan

LAYERS = ("gdn", "attention", "moe")


class OnVulkan(clover_rt_conformance.Suite):
    """Runs in the tests' process, which keeps its compiled shaders from case to case."""

    backend = "vulkan"
    device = "llvmpipe"
    precision = "exact"
    require: ClassVar[tuple[str, ...]] = HOT

    @classmethod
    def open_device(cls) -> Device:
        return open_vulkan()


class TestHotOps(OnVulkan):
    cases = HOT_CASES


class TestLayerOps(OnVulkan):
    """Each of them fused: one row, rows of a block, and several sequences."""

    require: ClassVar[tuple[str, ...]] = LAYERS
    cases: ClassVar[tuple[str, ...]] = (
        "moe/q4-32/p=0.8/commit1",
        "moe/bf16/p=0.8/four-sequences",
        "gdn/q4-32/verify1",
        "gdn/bf16/commit32+preview32",
        "attention/q4-32/commit1",
        "attention/bf16/four-sequences",
    )


class TestRowsIn8Bits(OnVulkan):
    """In `fast` the products of quantised weights round their rows."""

    precision = "fast"
    cases: ClassVar[tuple[str, ...]] = (
        "linear/q8/T=[17],N=*",
        "linear/q4-32/T=7,N=63,K=192*",
        "expert_gemm/q4-32/T=[017]/spread",
        "confidence_topk/q4-32/top=8/*",
    )


class TestAGoldenRun(OnVulkan):
    cases: ClassVar[tuple[str, ...]] = ("model/clover_tiny/decode/short/release/diffusion_t03",)


def test_the_prompt_of_the_readme_gets_the_tokens_of_the_cpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tokens(*words: str) -> list[int]:
        assert main(["run", "--json", *words, "Sort these numbers: 41, 7, 23."]) == 0
        end: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return list(end["tokens"])

    expected = tokens("--backend", "cpu")
    assert expected
    assert tokens("--backend", "vulkan", "--device", "llvmpipe") == expected


def problems(device: Device, name: str) -> list[str]:
    """Judge a case in `exact`, and close the device."""
    spec = OPS[name.partition("/")[0]]
    case = next(c for c in spec.cases() if c.id == name)
    verdict = try_case(device, spec, case, Precision.EXACT, 0, 2)
    device.close()
    return [str(problem) for problem in verdict.problems]


@pytest.mark.parametrize(
    "name", ["moe/bf16/p=0.8/preview8", "gdn/bf16/commit1", "attention/bf16/commit8"]
)
def test_a_layer_with_weights_in_parts_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 40 KiB: experts, and the joined weights of the first products."""
    device = OnVulkan.open_device()
    kernel, limit, parts = device.kernels[name.partition("/")[0]], device.max_binding_bytes, []
    prepare = kernel.prepare

    def prepared_small(*given: Any) -> Any:
        monkeypatch.setattr(device, "max_binding_bytes", 40 << 10)
        found = prepare(*given)
        monkeypatch.setattr(device, "max_binding_bytes", limit)
        matrices = [*found["projection"].matrices, *found.values()]
        parts.append(max(len(m.parts) for m in matrices if hasattr(m, "parts")))
        return found

    monkeypatch.setattr(kernel, "prepare", prepared_small)
    found = problems(device, name)
    assert parts[0] > 1
    assert found == []


@pytest.mark.parametrize("name", ["q4-32/p=0.8/four-sequences", "bf16/p=1/empty"])
def test_experts_of_many_rows_are_right_at_few_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite's cases have too few rows for lists of tiles."""
    device = OnVulkan.open_device()
    from clover_rt_vulkan.kernels import moe as chosen

    monkeypatch.setattr(chosen, "MOST_GROUPED", 0)
    assert problems(device, f"moe/{name}") == []


@pytest.mark.parametrize("name", ["f32/T=33/spread", "q4-32/T=7/one-expert", "f32/T=0/spread"])
def test_the_many_row_form_of_experts_is_right_at_few_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite's cases have too few rows for it."""
    device = OnVulkan.open_device()
    from clover_rt_vulkan.kernels import expert_gemm as chosen

    monkeypatch.setattr(chosen, "MOST_FEW", 0)
    assert problems(device, f"expert_gemm/{name}") == []


@pytest.mark.full
def test_everything_that_is_tried_is_right_and_only_what_has_no_room_is_declined(
    tmp_path: Path,
) -> None:
    target = tmp_path / "vulkan.json"
    words = ["conformance", "--backend", "vulkan", "--device", "llvmpipe"]
    code = main([*words, "--lane", "full", "--require", "hot", "--json", str(target)])
    told = json.loads(target.read_text())
    assert told["failures"] == [] and told["problems"] == []
    # a table of 4 GiB; lavapipe has 2 GiB in Debian 12 and the host's memory in later ones
    has_room = told["device"]["memory_bytes"] > 1 << 32
    wide = [] if has_room else [f"embed_rows/past-2^31 [{p.value}]" for p in Precision]
    assert [case for cases in told["declined"].values() for case in cases] == wide
    assert code == 0
