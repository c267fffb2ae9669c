"""Runners that whole golden runs are driven with.

`make_runner(name, slots)` opens a tiny checkpoint behind the engine's runner interface, and
`read_state(runner, slot, length)` returns layer -> arrays named as in the golden files: conv and S,
or k and v. A runner that joins RUNNERS with both runs every golden decode test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.end_to_end.plans import cpu_plan, plan_state, reference_plan
from tests.golden import checkpoint
from tests.reference.oracle_runner import OracleRunner


def oracle(name: str, slots: int, **options: Any) -> OracleRunner:
    """Return the float64 oracle over a golden checkpoint."""
    return OracleRunner(checkpoint(name), slots, **options)


def oracle_state(runner: OracleRunner, slot: int, length: int) -> dict[int, dict[str, Any]]:
    """Return the oracle's state of a slot after `length` committed tokens."""
    out = {i: {"conv": s.ring, "S": s.S} for i, s in runner.state[slot].items()}
    return out | {i: {"k": k, "v": v} for i, (k, v) in runner.kv(slot, length).items()}


RUNNERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "oracle": (oracle, oracle_state),
    "reference": (reference_plan, plan_state),
    "cpu": (cpu_plan, plan_state),
}


@pytest.fixture(params=list(RUNNERS))
def runner_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_runner(runner_name: str) -> Callable[..., Any]:
    """Return maker(checkpoint name, slots) -> runner."""
    return RUNNERS[runner_name][0]


@pytest.fixture
def read_state(runner_name: str) -> Callable[..., Any]:
    """Return reader(runner, slot, length) -> {layer: {"conv", "S"} or {"k", "v"}}."""
    return RUNNERS[runner_name][1]
