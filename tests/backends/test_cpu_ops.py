"""Every case of every primitive on the cpu backend, in both precisions."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from clover_rt.backend import Device
from clover_rt.spec import OpSpec, Precision
from clover_rt_conformance.harness import run_case
from clover_rt_cpu.kernels import TYPES


def groups() -> Iterator[object]:
    """Yield (spec, first part of a case's name behind the op's): a readable share of the cases."""
    for name in TYPES:
        spec = import_module(f"clover_rt.ops.{name}").SPEC
        for group in dict.fromkeys(case.id.split("/")[1] for case in spec.cases()):
            yield pytest.param(spec, group, id=f"{name}/{group}")


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.value)
@pytest.mark.parametrize(("spec", "group"), list(groups()))
def test_a_kernel_keeps_its_contract(
    device: Device, spec: OpSpec, group: str, precision: Precision
) -> None:
    failures = []
    for case in spec.cases():
        if case.id.split("/")[1] == group:
            found = run_case(device, spec, case, precision)
            failures += [f"{case.id} seed 0 {precision.value}: {problem}" for problem in found]
    assert not failures, "\n".join(failures)
