"""Standard output belongs to the command: what a backend's code prints goes to standard error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

STDOUT = 1
STDERR = 2


@contextlib.contextmanager
def own_output() -> Iterator[TextIO]:
    """Give the stream of the command's output; all else that is printed goes to stderr.

    That holds for Python's print, for what a library writes to the descriptor, and for child
    processes. Once it is over stdout is as it was.
    """
    sys.stdout.flush()
    before = os.dup(STDOUT)
    out = apart(sys.stdout)
    send(STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield out
        out.flush()
    finally:
        flush_libraries()
        os.dup2(before, STDOUT)
        os.close(before)
        if out is not sys.stdout:
            # closing writes what is buffered; what could not be written is not tried again
            with contextlib.suppress(OSError):
                out.close()


def apart(stream: TextIO) -> TextIO:
    """Return a stream that writes where this one does, whatever becomes of the descriptor."""
    try:
        if stream.fileno() != STDOUT:
            return stream
    except (io.UnsupportedOperation, AttributeError):
        return stream
    return open(os.dup(STDOUT), "w", encoding=stream.encoding, errors=stream.errors)


def send(target: int) -> None:
    """Make a descriptor write to stderr; to nowhere where that is closed."""
    try:
        os.dup2(STDERR, target)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, target)
        os.close(nowhere)


def flush_libraries() -> None:
    """Write what C libraries hold back, while stdout is still where their text belongs."""
    import ctypes

    ctypes.CDLL(None).fflush(None)
