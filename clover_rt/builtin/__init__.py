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
        import difflib

        near = difflib.get_close_matches(name, NAMES, n=1)
        raise BadInput(
            what=f"model {name!r} was requested",
            evidence=f"it is no folder here; built-in models: {', '.join(NAMES)}",
            fix=f"{f'did you mean {near[0]!r}? ' if near else ''}give the folder of a checkpoint, "
            "or one of these names",
            code="CRT-1014",
        )
    return Path(__file__).parent / name.replace("-", "_")
