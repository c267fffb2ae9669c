"""combine: add up a row's experts, the gated shared expert and the residual.

    h[t] = residual[t] + sum_r weights[t, r] y[t*R + r] + sigmoid(shared_gate[t]) shared[t]

    y            [T*R, D]     pairs whose id is negative are not read
    ids, weights [T, R] int32, float32
    shared, residual, h [T, D]      shared_gate [T, 1], before the sigmoid
The sum runs over r = 0, 1, ... in order, so it is the same on every run; no atomics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.common import (
    ELEMENTWISE,
    PARAMS,
    Array,
    axes_of,
    edge,
    f64,
    given,
    live_work,
    plain_table,
    random_rows,
    result,
    sigmoid,
)
from clover_rt.spec import Case, DType, OpSpec, Signature, StepParams, Tier, Work


def reference(
    *,
    params: StepParams,
    y: Array,
    ids: Array,
    weights: Array,
    shared: Array,
    shared_gate: Array,
    residual: Array,
) -> dict[str, Array]:
    n = params.rows
    h = f64(shared[:n]) * sigmoid(f64(shared_gate[:n]))
    for t in range(n):
        for r, e in enumerate(ids[t].tolist()):
            if e >= 0:
                h[t] += float(weights[t, r]) * f64(y[t * ids.shape[1] + r])
    return {"h": h + f64(residual[:n])}


def cases() -> Iterator[Case]:
    for top_k in (1, 8):
        for rows in (0, 1, 33):
            axes = axes_of(T=max(rows, 1), R=top_k, D=96)

            def build(rng: np.random.Generator, rows: int = rows, r: int = top_k) -> Any:
                n = max(rows, 1)
                ids = np.stack([rng.permutation(16)[:r] for _ in range(n)]).astype(np.int32)
                ids[rng.random((n, r)) < 0.2] = -1
                y = random_rows(rng, n * r, 96)
                # what is not to be read holds NaN, so that reading it shows
                y[ids.reshape(-1) < 0] = np.nan
                return {
                    "params": plain_table(rows),
                    "y": y,
                    "ids": ids,
                    "weights": rng.random((n, r)).astype(np.float32),
                    "shared": random_rows(rng, n, 96),
                    "shared_gate": random_rows(rng, n, 1) * 4,
                    "residual": random_rows(rng, n, 96),
                }

            classes = ("K-09",) if rows == 0 else ("K-11", "K-14", "K-32")
            yield Case(f"combine/R={top_k}/T={rows}", "combine", axes, build, classes=classes)


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    r, d = sig["R"], sig["D"]
    return live_work(2 * d * (r + 2), 4 * d * (r + 3), 0, live["T"])


SPEC = OpSpec(
    name="combine",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="weighted sum of experts in fixed order",
    operands=(
        PARAMS,
        edge("y", ("T*R", "D"), "output of each pair"),
        given("ids", DType.I32, ("T", "R"), "chosen experts"),
        given("weights", DType.F32, ("T", "R"), "their weights"),
        edge("shared", ("T", "D"), "output of the shared expert"),
        edge("shared_gate", ("T", "1"), "its gate before the sigmoid"),
        edge("residual", ("T", "D"), "input of the layer's second half"),
        result("h", ("T", "D"), "residual stream after the layer"),
    ),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=ELEMENTWISE,
)
