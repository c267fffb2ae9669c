"""Reading the text files of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clover_rt.errors import BadCheckpoint


def read_text(path: Path) -> str:
    """Return a file's text; BadCheckpoint (CRT-1180) where it is not readable UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
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
    except json.JSONDecodeError as error:
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
