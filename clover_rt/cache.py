"""Files in `clover-rt` of the user's cache folder (XDG_CACHE_HOME moves it).

What is kept there can be made again: where nothing can be written, nothing is kept, and a file that
is damaged counts as absent.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

DIGEST = hashlib.sha256().digest_size


def cache_folder(name: str) -> Path:
    """Return the folder for one kind of files; it need not be there."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return root / "clover-rt" / name


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; where that is not possible nothing happens."""
    name = ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        # without a cache the next start does its work again
        with suppress(OSError):
            os.unlink(name)


def write_checked(path: Path, data: bytes) -> None:
    """Write a file as `write` does, behind a hash of it."""
    write(path, hashlib.sha256(data).digest() + data)


def read_checked(path: Path) -> bytes | None:
    """Return what `write_checked` wrote; None where it is absent or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    sound = hashlib.sha256(data[DIGEST:]).digest() == data[:DIGEST]
    return data[DIGEST:] if sound else None
