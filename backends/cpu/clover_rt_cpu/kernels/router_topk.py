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
            chosen, picked = largest(ranked, top_k)
            width = chosen.shape[1]
            taken = picked > -np.inf
            ids[:n, :width] = np.where(taken, chosen, -1)
            ids[:n, width:] = -1
            share = np.exp(picked - picked[:, :1])
            share[~taken] = 0
            total = share.sum(axis=1, keepdims=True)
            weights[:n, :width] = np.where(total > 0, share / total, 0)
            weights[:n, width:] = 0
            for t in np.flatnonzero(odd).tolist():
                allowed_here = None if may is None else may[t]
                _odd_row(values[t], allowed_here, ids[t], weights[t])

        return step


def largest(values: Array, count: int) -> tuple[Array, Array]:
    """Return columns and values of the `count` largest of each row, falling, ties lowest first.

    values [n, E] without NaN; both are [n, min(count, E)]. Where a row has fewer numbers above
    -inf, the rest of its values are -inf and their columns mean nothing.
    """
    left = values.copy()
    rows = np.arange(len(values))
    columns = np.empty((len(values), min(count, values.shape[1])), np.int64)
    found = np.empty(columns.shape, values.dtype)
    for i in range(columns.shape[1]):
        best = left.argmax(axis=1)
        columns[:, i] = best
        found[:, i] = left[rows, best]
        left[rows, best] = -np.inf
    return columns, found


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
