"""router_topk: the largest logit is taken top_k times; argmax finds the lowest of equals.

Rows with NaN or infinities take a full stable sort instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import Array, CpuKernel, table_of, views


class RouterTopk(CpuKernel):
    """Choose each row's experts and their weights."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        logits, ids, weights = views(operands, "logits", "ids", "weights")
        allowed = views(operands, "allowed")[0] if sig.has("allowed") else None
        top_k = int(sig.attr("top_k"))

        @np.errstate(all="ignore")
        def step() -> None:
            n = table.rows
            if not n:
                return
            values = logits[:n]
            may = None if allowed is None else allowed[table.row_segment] != 0
            odd = ~np.isfinite(values).all(axis=1)
            ranked = values if may is None else np.where(may, values, -np.inf)
            chosen = _padded(largest(ranked, top_k), top_k)
            picked = np.take_along_axis(ranked, chosen, 1)
            taken = np.isfinite(picked)
            taken[:, values.shape[1] :] = False
            ids[:n] = np.where(taken, chosen, -1)
            share = np.exp(picked - picked[:, :1])
            share[~taken] = 0
            total = share.sum(axis=1, keepdims=True)
            weights[:n] = np.where(total > 0, share / total, 0)
            for t in np.flatnonzero(odd).tolist():
                allowed_here = None if may is None else may[t]
                _odd_row(values[t], allowed_here, ids[t], weights[t])

        return step


def largest(values: Array, count: int) -> Array:
    """Return the columns of the `count` largest values of each row, falling, ties lowest first.

    values [n, E] without NaN; at most E columns are returned.
    """
    left = values.copy()
    rows = np.arange(len(values))
    out = np.empty((len(values), min(count, values.shape[1])), np.int64)
    for i in range(out.shape[1]):
        best = left.argmax(axis=1)
        out[:, i] = best
        left[rows, best] = -np.inf
    return out


def _padded(chosen: Array, count: int) -> Array:
    missing = count - chosen.shape[1]
    return np.pad(chosen, ((0, 0), (0, missing))) if missing else chosen


def _odd_row(row: Array, may: Array | None, ids: Array, weights: Array) -> None:
    """Route a row with NaN or infinities: NaN ranks last, and makes the weights NaN."""
    order = np.lexsort((np.arange(len(row)), -np.where(np.isnan(row), -np.inf, row), np.isnan(row)))
    if may is not None:
        order = order[may[order]]
    order = order[: len(ids)]
    ids[:] = -1
    weights[:] = 0
    ids[: len(order)] = order
    values = row[order]
    if not len(order):
        return
    if np.isnan(values).any():
        weights[: len(order)] = np.nan
        return
    top = values[0]
    share = np.exp(values - top) if np.isfinite(top) else np.zeros_like(values)
    total = share.sum()
    weights[: len(order)] = share / total if total > 0 else 0
