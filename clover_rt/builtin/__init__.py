"""The small checkpoints that ship inside the package, so that a first run needs no download."""

from __future__ import annotations

from pathlib import Path

from clover_rt.errors import BadInput

NAMES = ("clover-proto",)
"""Names that `path` takes; the first is the default."""


def path(name: str = NAMES[0]) -> Path:
    """Return the folder of a built-in checkpoint.

    Raises BadInput (CRT-1014) for a name that is not in NAMES.
    """
    if name not in NAMES:
        raise BadInput(
            what=f"built-in model {name!r} was requested",
            evidence=f"built-in models: {', '.join(NAMES)}",
            fix="use one of these names, or give the folder of a checkpoint",
            code="CRT-1014",
        )
    return Path(__file__).parent / name.replace("-", "_")
