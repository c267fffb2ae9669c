"""Other processes, as Linux tells of them in /proc."""

from __future__ import annotations

import time
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Wait for the end of a process that may have another parent; a zombie has ended too."""
    for _ in range(100):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they did."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    # it has ended meanwhile
    except OSError:
        return []
    own = [int(word) for word in text.split()]
    return own + [found for child in own for found in descendants(child)]
