"""The cpu device, opened once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clover_rt.backend import Device
from clover_rt_cpu.device import CpuDevice


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    opened = CpuDevice()
    yield opened
    opened.close()
