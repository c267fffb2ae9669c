"""The rocm backend: AMD GPUs, through the engine that the installed drivers allow."""

from __future__ import annotations

from clover_rt.backend import Backend
from clover_rt.hookspecs import hookimpl


@hookimpl
def clover_rt_backends() -> list[Backend]:
    """Return the rocm backend; its modules are imported here and not with the package."""
    from clover_rt_rocm.backend import RocmBackend

    return [RocmBackend()]
