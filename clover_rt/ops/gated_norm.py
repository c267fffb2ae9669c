"""gated_norm: root-mean-square norm of each value head, times a silu gate.

    y = o / sqrt(mean(o^2) + eps) * w * silu(z)          mean over the V columns of a head

    o, z, y [T, H*V]   w [V], used as it is
The norm comes before the gate.
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
    silu,
    weight,
)
from clover_rt.spec import Case, OpSpec, Signature, StepParams, Tier, Weight, Work


def reference(*, params: StepParams, o: Array, z: Array, w: Weight, eps: float) -> dict[str, Array]:
    n, width = params.rows, w.shape[0]
    rows = f64(o[:n]).reshape(n, o.shape[1] // width, width)
    normed = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + eps) * f64(w)
    return {"y": normed.reshape(n, o.shape[1]) * silu(f64(z[:n]))}


def cases() -> Iterator[Case]:
    for heads, width in ((4, 24), (2, 128)):
        for rows in (0, 1, 33):
            axes = axes_of(T=max(rows, 1), H=heads, V=width)

            def build(
                rng: np.random.Generator, rows: int = rows, h: int = heads, v: int = width
            ) -> Any:
                o, z = (random_rows(rng, max(rows, 1), h * v) for _ in range(2))
                if rows > 8:
                    o[1], z[2], z[3] = 0, 90, -90
                w = random_weight(rng, (v,), "f32", 1.0)
                return {"params": plain_table(rows), "o": o, "z": z, "w": w}

            classes = ("K-09",) if rows == 0 else ("K-17", "K-20")
            name = f"gated_norm/H={heads},V={width}/T={rows}"
            yield Case(name, "gated_norm", axes, build, {"eps": 1e-6}, classes=classes)


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    width = sig["H"] * sig["V"]
    return live_work(10 * width, 12 * width, 4 * sig["V"], live["T"])


SPEC = OpSpec(
    name="gated_norm",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="output norm of Gated DeltaNet",
    operands=(
        PARAMS,
        edge("o", ("T", "H*V"), "memory reads"),
        edge("z", ("T", "H*V"), "gate"),
        weight("w", ("V",), "scale of a column, the same for every head"),
        result("y", ("T", "H*V"), "normed and gated rows"),
    ),
    attrs=("eps",),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=ELEMENTWISE,
)
