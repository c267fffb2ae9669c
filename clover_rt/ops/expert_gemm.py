"""expert_gemm: each expert's gated network on the rows that chose it.

    y[f] = down_e (silu(gate_e x_t) * (up_e x_t))    for pairs f = t * R + choice of e

    x                 [T, D]
    order, offsets    [T*R], [E+1] int32 of group_rows; both absent: one expert takes every row
                      (E = 1, R = 1, f = t), as the shared expert does
    gate, up          [E, F, D]      down [E, D, F], in any weight format
    y                 [T*R, D]       pairs in no expert's part are left as they were
Products are summed in float32 or wider. An expert without rows reads none of its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.common import (
    PARAMS,
    Array,
    axes_of,
    edge,
    encode,
    f64,
    given,
    left_alone,
    live_work,
    plain_table,
    random_rows,
    random_weight,
    result,
    silu,
    weight,
    weight_bytes,
)
from clover_rt.ops.group_rows import reference as group
from clover_rt.spec import (
    Case,
    DType,
    Numerics,
    OpSpec,
    Signature,
    StepParams,
    Tier,
    Tolerance,
    Weight,
    Work,
)


def reference(
    *,
    params: StepParams,
    x: Array,
    gate: Weight,
    up: Weight,
    down: Weight,
    order: Array | None = None,
    offsets: Array | None = None,
    top_k: int = 1,
) -> dict[str, Array]:
    n = params.rows
    if order is None or offsets is None:
        order, offsets = np.arange(n), np.array([0, n])
    y = left_alone(n * top_k, x.shape[1])
    for e in range(gate.shape[0]):
        pairs = order[offsets[e] : offsets[e + 1]]
        if len(pairs) == 0:
            continue
        rows = f64(x[pairs // top_k])
        hidden = silu(rows @ f64(gate[e]).T) * (rows @ f64(up[e]).T)
        y[pairs] = hidden @ f64(down[e]).T
    return {"y": y}


FORMATS = ("bf16", "f32", "q8", "q4-32", "q4-64")


def cases() -> Iterator[Case]:
    for fmt in FORMATS:
        for rows in (0, 1, 7, 33):
            for kind in ("spread", "one-expert", "last-expert"):
                yield _case(fmt, rows, kind)
        for rows in (0, 1, 33):
            yield _shared(fmt, rows)
    yield _many()
    yield _large()


def _weights(rng: np.random.Generator, experts: int, f: int, d: int, fmt: str) -> Any:
    zero = bool(rng.integers(2))
    return {
        "gate": random_weight(rng, (experts, f, d), fmt, zero_point=zero),
        "up": random_weight(rng, (experts, f, d), fmt, zero_point=zero),
        "down": random_weight(rng, (experts, d, f), fmt, zero_point=zero),
    }


def _case(fmt: str, rows: int, kind: str) -> Case:
    experts, top_k, d, f = 9, 3, 128, 64
    capacity = max(rows, 1)

    def build(rng: np.random.Generator) -> Any:
        params = plain_table(rows)
        ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(capacity)])
        if kind != "spread":
            ids[:] = -1
            ids[:, 0] = experts - 1 if kind == "last-expert" else 2
        groups = group(params=params, ids=ids.astype(np.int32), experts=experts)
        order = np.full(capacity * top_k, -1, np.int32)
        order[: rows * top_k] = groups["order"]
        x = random_rows(rng, capacity, d)
        index = {"order": order, "offsets": groups["offsets"]}
        return {"params": params, "x": x, **index, **_weights(rng, experts, f, d, fmt)}

    classes = ("K-09",) if rows == 0 else ("K-04", "K-06", "K-08")
    return Case(
        f"expert_gemm/{fmt}/T={rows}/{kind}",
        "expert_gemm",
        axes_of(T=capacity, E=experts, R=top_k, D=d, F=f),
        build,
        {"top_k": top_k},
        classes=classes,
    )


def _shared(fmt: str, rows: int) -> Case:
    capacity = max(rows, 1)

    def build(rng: np.random.Generator) -> Any:
        x = random_rows(rng, capacity, 128)
        return {"params": plain_table(rows), "x": x, **_weights(rng, 1, 192, 128, fmt)}

    return Case(
        f"expert_gemm/{fmt}/T={rows}/shared",
        "expert_gemm",
        axes_of(T=capacity, E=1, R=1, D=128, F=192),
        build,
        {"top_k": 1},
        classes=("K-09",) if rows == 0 else ("K-03", "K-04"),
    )


def _many() -> Case:
    """As many experts as the release has, and more pairs than rows."""
    experts, top_k, rows = 256, 8, 33

    def build(rng: np.random.Generator) -> Any:
        params = plain_table(rows)
        ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(rows)]).astype(np.int32)
        groups = group(params=params, ids=ids, experts=experts)
        x = random_rows(rng, rows, 32)
        return {"params": params, "x": x, **groups, **_weights(rng, experts, 32, 32, "q4-32")}

    axes = axes_of(T=rows, E=experts, R=top_k, D=32, F=32)
    attrs = {"top_k": top_k}
    return Case("expert_gemm/256-experts", "expert_gemm", axes, build, attrs, classes=("K-22",))


def _large() -> Case:
    """Hidden values near 1 500 and outputs near 8e4: above the largest float16."""

    def build(rng: np.random.Generator) -> Any:
        x = np.abs(random_rows(rng, 3, 128)) + 1
        weights = _weights(rng, 1, 192, 128, "bf16")
        for name in ("gate", "up", "down"):
            values = np.abs(weights[name].values(np.float32)) * 3
            weights[name] = encode(values, "bf16")
        return {"params": plain_table(3), "x": x, **weights}

    axes = axes_of(T=3, E=1, R=1, D=128, F=192)
    attrs = {"top_k": 1}
    return Case("expert_gemm/sums-near-8e4", "expert_gemm", axes, build, attrs, classes=("K-18",))


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    """Weights are counted for `live["experts"]` distinct experts, all of them where not given."""
    d, f, r = sig["D"], sig["F"], sig["R"]
    used = live.get("experts", min(sig["E"], live["T"] * r))
    fixed = sum(weight_bytes(sig, w, used * d * f) for w in ("gate", "up", "down"))
    return live_work(6 * r * d * f, 4 * d * (1 + r), fixed, live["T"])


SPEC = OpSpec(
    name="expert_gemm",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="mixture-of-experts feed-forward with silu gates",
    operands=(
        PARAMS,
        edge("x", ("T", "D"), "rows"),
        given("order", DType.I32, ("T*R",), "pairs by expert", optional=True),
        given("offsets", DType.I32, ("E+1",), "parts of order", optional=True),
        weight("gate", ("E", "F", "D"), "gate projections"),
        weight("up", ("E", "F", "D"), "up projections"),
        weight("down", ("E", "D", "F"), "down projections"),
        result("y", ("T*R", "D"), "output of each pair"),
    ),
    attrs=("top_k",),
    reference=reference,
    cases=cases,
    work=work,
    tolerance={
        Numerics.F32: Tolerance(4e-6, 4e-5, "two chained sums of up to 8192 float32 products"),
        Numerics.BF16: Tolerance(2e-2, 2e-2, "rows and hidden values rounded to 8 bits"),
        Numerics.INT8_G32: Tolerance(
            2e-2, 4e-2, "rows and hidden values rounded to 1/254 of the largest of 32"
        ),
    },
)
