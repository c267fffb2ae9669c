"""A checkpoint written anew in q8 or q4."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clover_rt import quantise as quantiser
from clover_rt.api.choices import choice
from clover_rt.api.source import open_source
from clover_rt.quantise import keep_rule, render
from clover_rt.spec import Format

__all__ = ["quantise", "render"]

DEFAULT_GROUP = 32


def quantise(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    storage: str,
    *,
    group: int = DEFAULT_GROUP,
    keep: Sequence[str] = (),
    dry_run: bool = False,
    resume: bool = False,
    verify: bool = False,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Write a checkpoint to a new folder in q8 or q4; return sizes and errors.

    source   a folder, or the name of a built-in model
    storage  "q8" or "q4"
    keep     rules GLOB=q8 or GLOB=bf16 over tensor names; the first that matches counts
    The other arguments, the result and what is raised: see `clover_rt.quantise.quantise`.
    """
    rules = [keep_rule(text) for text in keep]
    return quantiser.quantise(
        open_source(source).checkpoint,
        Path(target),
        choice("storage", storage, Format),
        group,
        keep=rules,
        dry_run=dry_run,
        resume=resume,
        check=verify,
        on_progress=on_progress,
    )
