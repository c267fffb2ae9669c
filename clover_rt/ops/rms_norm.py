"""rms_norm: root-mean-square normalisation over groups of K columns.

    y = x / sqrt(mean(x^2) + eps) * (offset + w)

    x, y  [T, G*K]: G groups of K columns a row (G = 1 for the residual stream, G heads for q and k)
    w     [K], the same for every group
    eps, offset (1 for the norms stored as 1 + w, else 0)
A row of zeros gives zeros; squares are summed in float32 or wider, so 1e-38 does not underflow to
a division by zero.
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
    live_work,
    plain_table,
    random_rows,
    random_weight,
    result,
    weight,
)
from clover_rt.spec import Case, OpSpec, Signature, StepParams, Tier, Weight, Work


def reference(
    *, params: StepParams, x: Array, w: Weight, eps: float, offset: float
) -> dict[str, Array]:
    n, k = params.rows, w.shape[0]
    groups = f64(x[:n]).reshape(n, x.shape[1] // k, k)
    rms = np.sqrt((groups**2).mean(axis=-1, keepdims=True) + eps)
    # a row with inf becomes NaN
    with np.errstate(invalid="ignore"):
        y = groups / rms * (offset + f64(w))
    return {"y": y.reshape(n, x.shape[1])}


SIZES = ((1, 64), (1, 2048), (4, 32), (3, 24))
AROUND_LANES = ((1, 1), (2, 31), (1, 33), (1, 63), (2, 65))


def cases() -> Iterator[Case]:
    sizes = [(g, k, rows) for g, k in SIZES for rows in (0, 1, 31, 65)]
    lanes = [(g, k, 3) for g, k in AROUND_LANES]
    for g, k, rows in (*sizes, *lanes):
        for offset in (0.0, 1.0):
            axes = axes_of(T=max(rows, 1), G=g, K=k)

            def build(rng: np.random.Generator, rows: int = rows, g: int = g, k: int = k) -> Any:
                x = random_rows(rng, max(rows, 1), g * k) * 3
                if rows > 8:
                    x[1] = 0
                    x[2] *= 1e-38
                    x[3] *= 1e6
                w = random_weight(rng, (k,), "f32", 0.1)
                return {"params": plain_table(rows), "x": x, "w": w}

            classes: tuple[str, ...] = ("K-03", "K-04", "K-20")
            if (g, k) in AROUND_LANES:
                classes = ("K-03", "K-29")
            yield Case(
                f"rms_norm/G={g},K={k}/T={rows}/offset={offset:g}",
                "rms_norm",
                axes,
                build,
                {"eps": 1e-6, "offset": offset},
                classes=classes if rows else ("K-09",),
            )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    width = sig["G"] * sig["K"]
    return live_work(4 * width, 8 * width, 4 * sig["K"], live["T"])


SPEC = OpSpec(
    name="rms_norm",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="Zhang and Sennrich 2019, equation 4",
    operands=(
        PARAMS,
        edge("x", ("T", "G*K"), "rows of G groups"),
        weight("w", ("K",), "scale of a column, less `offset`"),
        result("y", ("T", "G*K"), "normalised rows"),
    ),
    attrs=("eps", "offset"),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=ELEMENTWISE,
)
