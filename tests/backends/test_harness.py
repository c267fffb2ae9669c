"""The harness sees every way of breaking a contract: a right kernel with one fault planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from clover_rt.backend import Device, Kernel, Step, Tensor
from clover_rt.errors import Unsupported
from clover_rt.ops import block_scan, expert_gemm, linear, router_topk
from clover_rt.spec import Case, OpSpec, Precision, Signature
from clover_rt_conformance.harness import run_case
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.kernel import table_of, view

Fault = Callable[[Mapping[str, np.ndarray], int, int], None]


class Faulty(Kernel):
    """Another kernel, and after each of its calls a fault: fault(arrays, live rows, call)."""

    def __init__(self, right: Kernel, fault: Fault) -> None:
        self.right, self.fault = right, fault
        self.scratch, self.prepare = right.scratch, right.prepare  # type: ignore[method-assign]

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Any,
        scratch: Tensor | None,
    ) -> Step:
        step = self.right.bind(sig, operands, prepared, scratch)
        arrays = {name: view(tensor) for name, tensor in operands.items()}
        table = table_of(sig, operands)
        calls = iter(range(100))

        def faulty() -> None:
            step()
            self.fault(arrays, table.rows, next(calls))

        return faulty


class Refusing(Faulty):
    def supports(self, sig: Signature) -> str:
        return f"T={sig['T']} exceeds 0"


@pytest.fixture
def faulty() -> Iterator[Callable[[OpSpec, Fault], Device]]:
    device = CpuDevice()

    def plant(spec: OpSpec, fault: Fault, kind: type[Faulty] = Faulty) -> Device:
        device.kernels = {**device.kernels, spec.name: kind(device.kernels[spec.name], fault)}
        return device

    yield plant
    device.close()


def case_of(spec: OpSpec, name: str) -> Case:
    return next(c for c in spec.cases() if c.id == f"{spec.name}/{name}")


def beyond(array: np.ndarray) -> np.ndarray:
    """Return the bytes right behind an array: its guard band."""
    whole: Any = array
    while whole.base is not None:
        whole = whole.base
    start = array.ctypes.data - whole.ctypes.data + array.nbytes
    return whole[start : start + 4]


def nothing(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
    """Plant no fault."""


def slightly_wrong(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
    arrays["y"][rows - 1, -1] += 0.01


def leaks_nan(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
    arrays["y"][0, 0] = np.nan


def writes_behind(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
    beyond(arrays["y"])[:] = 0


def writes_an_input(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
    arrays["x"][0, 0] = 1


def writes_the_table(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
    arrays["params"][-1] = 1


def differs_between_calls(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
    arrays["y"][0, 0] *= np.float32(1 + call * 2e-7)


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        (slightly_wrong, "bound"),
        (leaks_nan, "got nan"),
        (writes_behind, "behind it"),
        (writes_an_input, "an input was written"),
        (writes_the_table, "an input was written"),
        (differs_between_calls, "call 2 on the same inputs"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_faulty_product_is_found(faulty: Any, fault: Fault, note: str) -> None:
    case = case_of(linear.SPEC, "f32/T=7,N=63,K=192")
    device = faulty(linear.SPEC, fault)
    found = [str(problem) for problem in run_case(device, linear.SPEC, case, Precision.EXACT)]
    assert any(note in problem for problem in found), found


def test_a_row_written_past_an_empty_table_is_found(faulty: Any) -> None:
    def writes_a_row(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
        arrays["y"][rows] = 0

    case = case_of(linear.SPEC, "f32/T=0,N=64,K=192")
    device = faulty(linear.SPEC, writes_a_row)
    (found,) = run_case(device, linear.SPEC, case, Precision.EXACT)
    assert "rows past the table" in found.note


def test_state_of_another_slot_written_is_found(faulty: Any) -> None:
    def drifts(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
        arrays["S"][0, 1, 2, 3] *= np.float32(1.0000002)

    case = case_of(block_scan.SPEC, "H=4,K=16,V=24/commit7")
    device = faulty(block_scan.SPEC, drifts)
    (found,) = run_case(device, block_scan.SPEC, case, Precision.EXACT)
    assert (found.operand, found.index) == ("S", (0, 1))


@pytest.mark.parametrize(
    ("spec", "name", "output"),
    [
        (block_scan.SPEC, "H=4,K=16,V=24/commit32+preview32", "o"),
        (expert_gemm.SPEC, "f32/T=7/one-expert", "y"),
    ],
    ids=["block_scan", "expert_gemm"],
)
def test_rows_that_are_not_the_kernels_to_write_are_guarded(
    faulty: Any, spec: OpSpec, name: str, output: str
) -> None:
    def fills(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
        values = arrays[output]
        values[np.isnan(values)] = 0

    found = run_case(faulty(spec, fills), spec, case_of(spec, name), Precision.EXACT)
    assert any("left alone" in problem.note for problem in found)


def test_a_wrong_integer_is_found(faulty: Any) -> None:
    def swaps(arrays: Mapping[str, np.ndarray], rows: int, call: int) -> None:
        arrays["ids"][0, :2] = arrays["ids"][0, 1::-1]

    case = case_of(router_topk.SPEC, "E=16,R=4/commit33")
    found = run_case(faulty(router_topk.SPEC, swaps), router_topk.SPEC, case, Precision.EXACT)
    assert [problem.operand for problem in found] == ["ids"]


def test_a_refusal_is_no_pass(faulty: Any) -> None:
    case = case_of(linear.SPEC, "f32/T=7,N=63,K=192")
    device = faulty(linear.SPEC, nothing, Refusing)
    with pytest.raises(Unsupported, match="T=7 exceeds 0"):
        run_case(device, linear.SPEC, case, Precision.EXACT)


def test_a_kernel_without_a_fault_passes(faulty: Any) -> None:
    case = case_of(linear.SPEC, "f32/T=7,N=63,K=192")
    device = faulty(linear.SPEC, nothing)
    assert run_case(device, linear.SPEC, case, Precision.EXACT) == []
