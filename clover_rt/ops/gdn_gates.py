"""gdn_gates: decay and write strength of the gated delta rule.

    g    = -exp(A_log) * softplus(a + dt_bias)     log decay, <= 0 (natural log)
    beta = sigmoid(b)                              in (0, 1)

    a, b [T, H]   A_log, dt_bias [H]   g, beta [T, H] float32
softplus and exp stay finite for any finite input.
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
    result,
    sigmoid,
    softplus,
    vector,
    weight,
)
from clover_rt.spec import Case, DType, OpSpec, Signature, StepParams, Tier, Weight, Work


def reference(
    *, params: StepParams, a: Array, b: Array, A_log: Weight, dt_bias: Weight
) -> dict[str, Array]:
    n = params.rows
    g = -np.exp(f64(A_log)) * softplus(f64(a[:n]) + f64(dt_bias))
    return {"g": g, "beta": sigmoid(f64(b[:n]))}


def cases() -> Iterator[Case]:
    for heads in (4, 32):
        for rows in (0, 1, 33):
            axes = axes_of(T=max(rows, 1), H=heads)

            def build(rng: np.random.Generator, rows: int = rows, heads: int = heads) -> Any:
                a, b = (random_rows(rng, max(rows, 1), heads) * 4 for _ in range(2))
                if rows > 8:
                    a[1], a[2], b[1], b[2] = 120, -120, 120, -120
                return {
                    "params": plain_table(rows),
                    "a": a,
                    "b": b,
                    "A_log": vector(np.log(rng.uniform(0.05, 16, heads))),
                    "dt_bias": vector(rng.uniform(-4, 2, heads)),
                }

            classes = ("K-09",) if rows == 0 else ("K-17", "K-19")
            yield Case(f"gdn_gates/H={heads}/T={rows}", "gdn_gates", axes, build, classes=classes)


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    return live_work(20 * sig["H"], 16 * sig["H"], 8 * sig["H"], live["T"])


SPEC = OpSpec(
    name="gdn_gates",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="Yang et al. 2024, Gated Delta Networks, section 3; decay as in Mamba-2",
    operands=(
        PARAMS,
        edge("a", ("T", "H"), "decay input"),
        edge("b", ("T", "H"), "write-strength input"),
        weight("A_log", ("H",), "log of the decay rate"),
        weight("dt_bias", ("H",), "bias of the decay input"),
        result("g", ("T", "H"), "log decay", DType.F32),
        result("beta", ("T", "H"), "write strength", DType.F32),
    ),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=ELEMENTWISE,
)
