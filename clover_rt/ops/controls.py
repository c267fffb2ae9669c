"""Response controls: how a row of logits is changed before anything is picked from it.

For a row that would take response position P, in this order:
1. suppressed ids to -inf
2. for each id seen c > 0 times: l -= c * frequency + presence; then l = l * r if l < 0 else l / r
3. every stop id: + length_penalty * ramp(length_start, length_window)
4. the think-end id, while the row's think flag is set: + think_bias * ramp(think_start, ...)
with ramp = clamp((P - start) / window, 0, 1), and where window <= 0: 1 if P > start else 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clover_rt.ops.common import Array


def ramp(position: int, start: int, window: int) -> float:
    """Return how far a bias has grown at a response position, 0 to 1."""
    if window <= 0:
        return 1.0 if position > start else 0.0
    return min(max((position - start) / window, 0.0), 1.0)


def unpack_mask(words: Array, vocab: int) -> Array:
    """Return bool [vocab] from uint32 words; bit i of word w is id 32 w + i."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    return bits[:vocab].astype(bool)


def pack_mask(suppressed: Array) -> Array:
    """Return uint32 words [ceil(vocab / 32)] of a bool mask [vocab]."""
    padded = np.zeros(-(-len(suppressed) // 32) * 32, np.uint8)
    padded[: len(suppressed)] = suppressed
    return np.packbits(padded, bitorder="little").view("<u4")


def apply_controls(
    logits: Array, seen: Array, record: Any, position: int, think_open: bool, suppressed: Array
) -> Array:
    """Return float64 logits [vocab] after the controls.

    seen [vocab] committed counts; record one item of CONTROLS_DTYPE; suppressed bool [vocab]
    """
    out = np.array(logits, np.float64)
    out[suppressed] = -np.inf
    hit = seen > 0
    lowered = out[hit] - seen[hit] * float(record["frequency"]) - float(record["presence"])
    r = float(record["repetition"])
    out[hit] = np.where(lowered < 0, lowered * r, lowered / r)
    length = ramp(position, int(record["length_start"]), int(record["length_window"]))
    for stop in record["stops"][: record["stop_count"]].tolist():
        out[stop] += float(record["length_penalty"]) * length
    if think_open and record["think_end"] >= 0:
        grown = ramp(position, int(record["think_start"]), int(record["think_window"]))
        out[record["think_end"]] += float(record["think_bias"]) * grown
    return out
