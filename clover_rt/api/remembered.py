"""What was found out once and is remembered: a small file in the user's cache folder.

The files lie in `clover-rt/first-run` (XDG_CACHE_HOME moves the cache folder). A file's name is a
hash of its key, and the key stands in it, for people and against chance. Removing a file makes the
program find out again; where none can be written it does so at every start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clover_rt.cache import cache_folder, write


class Remembered:
    """One key of plain data, and what was found for it."""

    def __init__(self, key: Mapping[str, Any], folder: Path | None = None) -> None:
        self.key = dict(key)
        name = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()
        self.path = (cache_folder("first-run") if folder is None else folder) / f"{name}.json"

    @property
    def found(self) -> Mapping[str, Any] | None:
        """What was kept, its key included; None where there is nothing."""
        try:
            kept = json.loads(self.path.read_bytes())
        # not there, not readable, or cut short: it is found out again
        except (OSError, ValueError):
            return None
        return kept if isinstance(kept, dict) and kept.get("key") == self.key else None

    def keep(self, found: Mapping[str, Any]) -> None:
        """Write what was found; nothing happens where that is not possible."""
        write(self.path, json.dumps({"key": self.key, **found}, indent=1).encode())
