"""Files that this backend keeps in `clover-rt` of the user's cache folder (XDG_CACHE_HOME)."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def cache_folder(name: str) -> Path:
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
