"""output_gate: attention's output times the sigmoid of its gate.

y = o * sigmoid(gate)          o, gate, y [T, N]
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
)
from clover_rt.spec import Case, OpSpec, Signature, StepParams, Tier, Work


def reference(*, params: StepParams, o: Array, gate: Array) -> dict[str, Array]:
    n = params.rows
    return {"y": f64(o[:n]) * sigmoid(f64(gate[:n]))}


def cases() -> Iterator[Case]:
    for width in (64, 129):
        for rows in (0, 1, 33):
            axes = axes_of(T=max(rows, 1), N=width)

            def build(rng: np.random.Generator, rows: int = rows, width: int = width) -> Any:
                o, gate = (random_rows(rng, max(rows, 1), width) * 5 for _ in range(2))
                gate[0, :2] = (120, -120)
                return {"params": plain_table(rows), "o": o, "gate": gate}

            classes = ("K-09",) if rows == 0 else ("K-03", "K-17")
            yield Case(
                f"output_gate/N={width}/T={rows}", "output_gate", axes, build, classes=classes
            )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    return live_work(6 * sig["N"], 12 * sig["N"], 0, live["T"])


SPEC = OpSpec(
    name="output_gate",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="gated attention",
    operands=(
        PARAMS,
        edge("o", ("T", "N"), "attention output"),
        edge("gate", ("T", "N"), "gate before the sigmoid"),
        result("y", ("T", "N"), "gated output"),
    ),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=ELEMENTWISE,
)
