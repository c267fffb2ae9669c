"""The cpu device, opened once with each instruction set that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clover_rt.backend import Device
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.jit.isa import choose, supported

BEST = choose()
# numpy and the set that the processor runs by default in the usual lane, the others in the full one
SETS = ["numpy", *supported()]
USUAL = ("numpy", BEST.name if BEST is not None else "numpy")


@pytest.fixture(
    scope="session",
    params=[pytest.param(n, marks=[] if n in USUAL else pytest.mark.full) for n in SETS],
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = CpuDevice(isa=request.param)
    yield opened
    opened.close()
