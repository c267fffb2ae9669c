"""The sketch backend of clover-rt."""

from __future__ import annotations

from clover_rt.backend import Backend
from clover_rt.hookspecs import hookimpl


@hookimpl
def clover_rt_backends() -> list[Backend]:
    """Return the backends of this package; their modules are imported here, not with it."""
    from clover_rt_sketch.device import SketchBackend

    return [SketchBackend()]
