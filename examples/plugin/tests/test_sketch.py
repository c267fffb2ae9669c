"""The sketch backend is found, keeps every contract, and writes what the cpu backend writes."""

from __future__ import annotations

import pytest

import clover_rt
from clover_rt.errors import Unsupported
from clover_rt.ops import OPS
from clover_rt.plugins import discover, open_device
from clover_rt.spec import Precision
from clover_rt_conformance.harness import run_case

DEVICE = open_device("sketch")[1]
CASES = [case for op in DEVICE.kernels for case in OPS[op].cases()]


def text(backend):
    with clover_rt.load(backend=backend) as model:
        response = model.generate("Hello", mode="ar", max_new_tokens=8)
        return "".join(getattr(event, "text", "") for event in response)


def test_the_backend_is_found():
    found = discover(only="sketch")
    assert list(found.backends) == ["sketch"]
    assert found.findings == ()


def test_it_writes_what_the_cpu_backend_writes():
    assert text("sketch") == text("cpu")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_kernel_keeps_its_contract(case):
    try:
        problems = run_case(DEVICE, OPS[case.op], case, Precision.EXACT)
    except Unsupported as refusal:
        # a refusal is an answer: the plan then runs the operation on the host
        assert refusal.evidence
        return
    assert [str(p) for p in problems] == []
