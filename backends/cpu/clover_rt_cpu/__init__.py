"""The cpu backend: every primitive in numpy, float32, with bits that depend on the row alone."""

from __future__ import annotations

from clover_rt.backend import Backend
from clover_rt.hookspecs import hookimpl


@hookimpl
def clover_rt_backends() -> list[Backend]:
    """Return the cpu backend; its modules are imported here and not with the package."""
    from clover_rt_cpu.device import CpuBackend

    return [CpuBackend()]
