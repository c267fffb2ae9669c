"""clover-rt: the portable runtime of Clover, a text model that writes by block diffusion.

`clover_rt.load` opens a checkpoint on a backend; the model it returns generates typed events.
Names are imported when they are first used, so that `clover-rt --help` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clover_rt.api import (
        BlockEvent,
        EndEvent,
        Model,
        PassEvent,
        PrefillEvent,
        RoundEvent,
        TextEvent,
        TokensEvent,
        load,
    )
    from clover_rt.errors import CloverError

__version__ = "0.1.0"
__all__ = [
    "BlockEvent",
    "CloverError",
    "EndEvent",
    "Model",
    "PassEvent",
    "PrefillEvent",
    "RoundEvent",
    "TextEvent",
    "TokensEvent",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from clover_rt import api, errors

    return getattr(errors if name == "CloverError" else api, name)
