"""Reading the text files of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clover_rt.errors import BadCheckpoint

MAX_BYTES = 16 * 2**20
"""Of a template or a settings file; published ones have some kilobytes."""


def read_text(path: Path) -> str:
    """Return a file's text; BadCheckpoint (CRT-1180) where it is too long or not UTF-8."""
    try:
        with path.open("rb") as stream:
            blob = stream.read(MAX_BYTES + 1)
        if len(blob) > MAX_BYTES:
            raise OSError(f"it has more than {MAX_BYTES} bytes")
        return blob.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(
            what=f"cannot read {path.name}",
            evidence=f"{path}: {error}",
            fix="restore the file from the checkpoint's source",
            code="CRT-1180",
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, {} where there is no file; BadCheckpoint where it is broken."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path))
    # deep nesting and numbers of thousands of digits are no JSONDecodeError
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(
            what=f"cannot read {path.name}",
            evidence=f"{path}: {error}",
            fix="restore the file from the checkpoint's source",
            code="CRT-1181",
        ) from error
    if not isinstance(value, dict):
        raise BadCheckpoint(
            what=f"cannot read {path.name}",
            evidence=f"{path}: the top level is {type(value).__name__}, not an object",
            fix="restore the file from the checkpoint's source",
            code="CRT-1181",
        )
    return value
