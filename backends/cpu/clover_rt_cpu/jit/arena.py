"""Memory for repacked weights: anonymous pages, huge ones where the system has them."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
HUGE = 2 << 20


def arena(nbytes: int) -> Array:
    """Return zeroed bytes that start at a multiple of 2 MB where they are that many."""
    if nbytes < HUGE:
        raw = np.zeros(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes]
    # private memory: a shared mapping, which is the default, gets no huge pages
    block = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):
        block.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(block, np.uint8)
    start = -raw.ctypes.data % HUGE
    return raw[start : start + nbytes]
