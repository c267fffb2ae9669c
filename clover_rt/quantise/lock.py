"""One process at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clover_rt.errors import BadInput

try:
    import fcntl
except ImportError:  # Windows, where a folder has no handle: there nothing is locked
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder.

    Raises BadInput (CRT-1214) where one is in it, OSError where it cannot be opened.
    """
    handle = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if handle is not None:
            _lock(handle, folder)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadInput(
            what=f"{folder} was to be taken up",
            evidence="another process is writing in it",
            fix="wait for that one to end",
            code="CRT-1214",
        ) from error
