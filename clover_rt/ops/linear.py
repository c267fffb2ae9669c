"""linear: rows times a weight, plus an optional residual.

    y[t, n] = sum_k x[t, k] w[n, k] (+ residual[t, n])

    x [T, K]   w [N, K] in any weight format   residual, y [T, N]
Products are summed in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.common import (
    PARAMS,
    SUMS,
    Array,
    axes_of,
    edge,
    encode,
    f64,
    live_work,
    plain_table,
    random_rows,
    random_weight,
    result,
    weight,
    weight_bytes,
)
from clover_rt.spec import Case, OpSpec, Signature, StepParams, Tier, Weight, Work


def reference(
    *, params: StepParams, x: Array, w: Weight, residual: Array | None = None
) -> dict[str, Array]:
    n = params.rows
    y = f64(x[:n]) @ f64(w).T
    if residual is not None:
        y += f64(residual[:n])
    return {"y": y}


FORMATS = ("f32", "f16", "bf16", "q8", "q4-32", "q4-64", "q4-128")


def cases() -> Iterator[Case]:
    for fmt in FORMATS:
        k = 128 if fmt == "q4-128" else 192
        for rows, n in ((0, 64), (1, 1), (1, 257), (7, 63), (31, 64), (33, 65), (130, 96)):
            for residual in (False, True):
                yield _case(fmt, rows, n, k, residual)
    for fmt in ("q8", "q4-32", "q4-64", "q4-128"):
        yield _identity(fmt)
    for fmt in ("f32", "f16", "bf16"):
        yield _case(fmt, 7, 65, 200, False, ("K-03", "K-05"))
    yield _case("f32", 3, 1, 7, False, ("K-27",))
    yield _case("bf16", 1, 65_537, 32, False, ("K-22",))
    for fmt in ("f32", "bf16", "q8", "q4-64"):
        yield _large(fmt)


def _case(
    fmt: str, rows: int, n: int, k: int, residual: bool, classes: tuple[str, ...] = ()
) -> Case:
    capacity = max(rows, 1)

    def build(rng: np.random.Generator) -> Any:
        out = {
            "params": plain_table(rows),
            "x": random_rows(rng, capacity, k),
            "w": random_weight(rng, (n, k), fmt, zero_point=bool(n % 2)),
        }
        if residual:
            out["residual"] = random_rows(rng, capacity, n)
        return out

    classes = classes or (("K-09",) if rows == 0 else ("K-03", "K-04", "K-06"))
    name = f"linear/{fmt}/T={rows},N={n},K={k}" + ("/residual" if residual else "")
    return Case(name, "linear", axes_of(T=capacity, N=n, K=k), build, classes=classes)


def _identity(fmt: str) -> Case:
    """Rows of the identity read every weight back: nibble order and zero points show at once."""
    k = 128

    def build(rng: np.random.Generator) -> Any:
        w = random_weight(rng, (64, k), fmt, zero_point=fmt != "q8")
        eye = np.eye(k, dtype=np.float32)
        return {"params": plain_table(k), "x": eye, "w": w}

    axes = axes_of(T=k, N=64, K=k)
    return Case(f"linear/{fmt}/identity", "linear", axes, build, classes=("K-07",))


def _large(fmt: str) -> Case:
    """Products that are all positive, and sums near 7e4: above the largest float16."""
    k = 8192

    def build(rng: np.random.Generator) -> Any:
        w = random_weight(rng, (33, k), fmt, 1.0)
        positive = encode(np.abs(w.values(np.float32)) + 2.2, fmt)
        x = np.abs(random_rows(rng, 3, k)) + np.float32(2.2)
        return {"params": plain_table(3), "x": x, "w": positive}

    axes = axes_of(T=3, N=33, K=k)
    return Case(f"linear/{fmt}/sums-near-7e4", "linear", axes, build, classes=("K-18",))


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    n, k = sig["N"], sig["K"]
    return live_work(2 * n * k, 4 * (n + k), weight_bytes(sig, "w", n * k), live["T"])


SPEC = OpSpec(
    name="linear",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="matrix product",
    operands=(
        PARAMS,
        edge("x", ("T", "K"), "rows"),
        weight("w", ("N", "K"), "weight"),
        edge("residual", ("T", "N"), "added to the product", optional=True),
        result("y", ("T", "N"), "product"),
    ),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=SUMS,
)
