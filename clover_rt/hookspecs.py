"""The one hook that a plugin implements."""

from __future__ import annotations

import pluggy

from clover_rt.backend import Backend

GROUP = "clover_rt.backends"
hookspec = pluggy.HookspecMarker("clover_rt")
hookimpl = pluggy.HookimplMarker("clover_rt")


@hookspec
def clover_rt_backends() -> list[Backend]:  # type: ignore[empty-body]
    """Return the backends of this plugin; import no device library here."""
