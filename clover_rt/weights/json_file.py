"""Reading a JSON file of a checkpoint, with errors that say where it is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clover_rt.errors import BadCheckpoint

LFS_MAGIC = b"version https://git-lfs"
MAX_JSON_BYTES = 64 * 2**20
"""Several times the index of the largest release; what is larger is another file."""

Pairs = list[tuple[str, Any]]


def read_object(
    path: Path, pairs_hook: Callable[[Pairs], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the object in a JSON file; `pairs_hook` makes every object from its pairs.

    Raises BadCheckpoint: CRT-1105 the file cannot be read, CRT-1107 it is too large to be one,
    CRT-1140 it is a Git LFS pointer, CRT-1103 it is not JSON (line and column), CRT-1106 it holds
    no object.
    """
    try:
        with path.open("rb") as stream:
            blob = stream.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if blob.startswith(LFS_MAGIC):
        raise lfs_pointer(path)
    if len(blob) > MAX_JSON_BYTES:
        raise BadCheckpoint(
            what=f"{path.name} cannot be used",
            evidence=f"{path} has more than {MAX_JSON_BYTES} bytes, too many for such a file",
            fix="check that this is the checkpoint's own file, and download it again",
            code="CRT-1107",
        )
    try:
        value = json.loads(blob, object_pairs_hook=pairs_hook)
    except json.JSONDecodeError as error:
        raise _broken(path, f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, str(error)) from error
    if not isinstance(value, dict):
        raise BadCheckpoint(
            what=f"{path.name} cannot be used",
            evidence=f"{path} holds a {type(value).__name__}, not an object",
            fix="download the file again",
            code="CRT-1106",
        )
    return value


def unreadable(path: Path, error: OSError) -> BadCheckpoint:
    """Return the error for a file that the system refuses to read."""
    return BadCheckpoint(
        what=f"{path.name} cannot be read",
        evidence=f"{path}: {error.strerror or error}",
        fix="check that the file exists and that you may read it",
        code="CRT-1105",
    )


def lfs_pointer(path: Path) -> BadCheckpoint:
    """Return the error for a Git LFS pointer in the place of a file."""
    return BadCheckpoint(
        what=f"{path.name} cannot be read",
        evidence=f"{path} is a Git LFS pointer of a few lines, not the file itself",
        fix="run `git lfs pull` in the checkpoint's folder, or download the file itself",
        code="CRT-1140",
    )


def _broken(path: Path, where: str) -> BadCheckpoint:
    return BadCheckpoint(
        what=f"{path.name} is not valid JSON",
        evidence=f"{path}: {where}",
        fix="correct the file at that place, or download it again",
        code="CRT-1103",
    )
