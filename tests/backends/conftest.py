"""The cpu device, opened once with each instruction set that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clover_rt.backend import Device
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.jit.isa import supported

# generated kernels are experimental: they are judged in the full lane
GENERATED = [pytest.param(name, marks=pytest.mark.full) for name in supported()]


@pytest.fixture(scope="session", params=["numpy", *GENERATED])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = CpuDevice(isa=request.param)
    yield opened
    opened.close()
