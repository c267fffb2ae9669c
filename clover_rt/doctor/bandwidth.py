"""How fast all cores together read memory; runs in a child process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

REPEATS = 5


def measure(nbytes: int, threads: int) -> dict[str, Any]:
    """Sum arrays of `nbytes` in all; return the best GB/s (1e9 bytes) of a few rounds."""
    parts = [np.ones(nbytes // 8 // threads) for _ in range(threads)]
    read = sum(p.nbytes for p in parts)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(REPEATS):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - start)
    return {"read_gb_per_s": read / best / 1e9, "read_bytes": read, "read_threads": threads}
