"""One process at a time in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from clover_rt.errors import BadInput

try:
    import fcntl
except ImportError:  # Windows, where a folder has no handle: there nothing is locked
    fcntl = None  # type: ignore[assignment]


class Lock:
    """A context in which no other process is in a folder.

    Raises BadInput (CRT-1214) on entry where one is, OSError where the folder cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None
        if fcntl is not None:
            self._handle = os.open(folder, os.O_RDONLY)

    def __enter__(self) -> None:
        if self._handle is None:
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            raise BadInput(
                what=f"{self._folder} was to be taken up",
                evidence="another process is writing in it",
                fix="wait for that one to end",
                code="CRT-1214",
            ) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handle is not None:
            os.close(self._handle)
