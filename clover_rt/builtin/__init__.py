"""The small checkpoints that ship inside the package, so that a first run needs no download."""

from __future__ import annotations

import json
from pathlib import Path

from clover_rt.errors import BadInput

NAMES = ("clover-tiny",)
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


def examples(name: str = NAMES[0]) -> list[dict[str, str]]:
    """Return a prompt for each kind of task that a built-in checkpoint knows: kind, prompt, answer.

    The answer is the right one, written by hand; it is left out where there are several.
    Raises BadInput (CRT-1068) for a name that is not in NAMES.
    """
    if name not in NAMES:
        raise BadInput(
            what=f"examples of model {name!r} were requested",
            evidence=f"only built-in models come with examples: {', '.join(NAMES)}",
            fix="name one of these, or leave --model out",
            code="CRT-1068",
        )
    found: list[dict[str, str]] = json.loads((path(name) / "examples.json").read_bytes())[
        "examples"
    ]
    return found
