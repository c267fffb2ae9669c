"""Files that a flag names for a report: looked at before the work, written after it."""

from __future__ import annotations

import os
from pathlib import Path

from clover_rt.errors import BadInput


def check(flag: str, path: Path) -> None:
    """Raise BadInput (CRT-1090) unless the file can be written; leave it as it is."""
    is_new = not os.path.lexists(path)
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise _unwritable(flag, path, error) from error


def write(flag: str, path: Path, text: str) -> None:
    """Write a text and a line end; raises BadInput (CRT-1090) where that fails."""
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(flag, path, error) from error


def _unwritable(flag: str, path: Path, error: OSError) -> BadInput:
    return BadInput(
        what=f"{flag} {path} was given",
        evidence=error.strerror or str(error),
        fix="name a file in a folder that can be written to",
        code="CRT-1090",
    )
