"""The response controls of one row in float64, and what is picked from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def ramp(position: int, start: int, window: int) -> float:
    """Return clamp((position - start) / window, 0, 1); a step where the window is 0 or less."""
    if window <= 0:
        return 1.0 if position > start else 0.0
    return min(max((position - start) / window, 0.0), 1.0)


def controlled(
    row: np.ndarray,
    position: int,
    counts: np.ndarray,
    suppressed: Iterable[bool],
    controls: Any,
    think_open: bool,
) -> np.ndarray:
    """Return the logits [vocab] of a row after suppression, penalties, length and think bias.

    controls has the fields of a request's controls; counts [vocab] are response counts.
    """
    out = np.where(np.asarray(suppressed), -np.inf, row.astype(np.float64))
    for i in np.nonzero(counts)[0]:
        x = out[i] - counts[i] * controls.frequency - controls.presence
        out[i] = x * controls.repetition if x < 0 else x / controls.repetition
    length = ramp(position, controls.length_start, controls.length_window)
    for stop in set(controls.stops):
        out[stop] += controls.length_penalty * length
    if think_open and controls.think_end >= 0:
        think = ramp(position, controls.think_start, controls.think_window)
        out[controls.think_end] += controls.think_bias * think
    return out


def summary(row: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return the top ids and logits, the log-sum-exp and the entropy in nats of a row."""
    order = np.argsort(-row, kind="stable")[:top]
    live = row[np.isfinite(row)]
    lse = live.max() + np.log(np.exp(live - live.max()).sum())
    p = np.exp(live - lse)
    return order, row[order], float(lse), float(-(p * (live - lse)).sum())
