"""The gated delta rule, one row after the other: shared by block_scan and advance.

A row reads S once for S^T k and S^T q, then decays S and adds the outer product. With the decay d
and the write w = beta (v - d S^T k) the output is d S^T q + (k . q) w, so S is not read again.
Heads go in groups whose part of S stays in cache, and the workers share the groups. Every head has
the same products of the same shape whatever the group, so a head's bits depend on its row and its
state alone, and rows may be split anywhere.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt_cpu.workers import Workers

Array = npt.NDArray[Any]
GROUP_FLOATS = 1 << 17
EPS = np.float32(1e-6)


def unit_rows(x: Array) -> Array:
    """Return rows of the last axis over sqrt(sum of squares + 1e-6), float32."""
    length: Array = np.vecdot(x, x)
    length = length + EPS
    np.sqrt(length, out=length)
    return np.divide(x, length[..., None])


def group_heads(heads: int, key: int, value: int) -> int:
    """Return the number of heads of a group."""
    return max(1, min(heads, GROUP_FLOATS // (key * value)))


class Scan:
    """Advances a memory over rows; outer [workers, group, K, V] float32 is its scratch."""

    def __init__(self, workers: Workers, outer: Array) -> None:
        self.workers = workers
        self.outer = outer

    def __call__(
        self,
        memory: Array,
        q: Array | None,
        k: Array,
        v: Array,
        g: Array,
        beta: Array,
        o: Array | None,
    ) -> None:
        """Advance memory [H, K, V] in place over n rows.

        q, k [n, G, K] raw (no q: nothing is read out); v, o [n, H, V]; g, beta [n, H]
        """
        heads, key, _ = memory.shape
        rows, groups, _ = k.shape
        each = heads // groups
        # k and q side by side: one product reads the memory for both
        pair = np.empty((rows, heads, 2, key), np.float32)
        unit_k = unit_rows(k)
        unit_q = unit_k if q is None else unit_rows(q) / np.sqrt(np.float32(key))
        pair[:, :, 0] = np.repeat(unit_k, each, axis=1)
        pair[:, :, 1] = np.repeat(unit_q, each, axis=1)
        decay = np.exp(g)
        overlap = np.repeat(np.vecdot(unit_k, unit_q), each, axis=1)
        size = self.outer.shape[1]
        left = deque(range(0, heads, size))

        def job(worker: int) -> None:
            with np.errstate(all="ignore"):
                while left:
                    try:
                        lo = left.popleft()
                    except IndexError:
                        return
                    h = slice(lo, min(lo + size, heads))
                    _rows(
                        memory[h],
                        pair[:, h],
                        v[:, h],
                        decay[:, h, None],
                        beta[:, h, None],
                        overlap[:, h, None],
                        None if o is None else o[:, h],
                        self.outer[worker, : h.stop - lo],
                    )

        self.workers.run(job, 8.0 * memory.size * rows)


def _rows(
    memory: Array,
    pair: Array,
    v: Array,
    decay: Array,
    beta: Array,
    overlap: Array,
    o: Array | None,
    outer: Array,
) -> None:
    read = np.empty((len(memory), 2, memory.shape[2]), np.float32)
    write = np.empty((len(memory), memory.shape[2]), np.float32)
    columns = pair[:, :, 0, :, None]
    for t in range(len(pair)):
        np.matmul(pair[t], memory, out=read)
        read *= decay[t, :, :, None]
        np.subtract(v[t], read[:, 0], out=write)
        np.multiply(write, beta[t], out=write)
        np.multiply(memory, decay[t, :, :, None], out=memory)
        np.multiply(columns[t], write[:, None, :], out=outer)
        np.add(memory, outer, out=memory)
        if o is not None:
            np.multiply(write, overlap[t], out=write)
            np.add(write, read[:, 1], out=o[t])
