"""rope: rotary position embedding of the first 2r columns of each head, halves layout.

    (x_i, x_{i+r}) -> (x_i cos - x_{i+r} sin, x_{i+r} cos + x_i sin),  i < r; other columns pass

    x, y    [T, H*K]
    angles  [P, r, 2] float32: cos and sin of p * theta^(-i / r), made on the host in float64
The position of a row is its segment's position plus its place in the segment.
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
    mixed_tables,
    random_rows,
    result,
    table,
)
from clover_rt.spec import Case, DType, OpSpec, Signature, StepParams, Tier, Work


def rope_angles(positions: int, half: int, theta: float) -> Array:
    """Return cos and sin [positions, half, 2] float32, from float64 angles."""
    inverse = theta ** (-np.arange(half, dtype=np.float64) / half)
    angle = np.arange(positions, dtype=np.float64)[:, None] * inverse
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


def reference(*, params: StepParams, x: Array, angles: Array, heads: int) -> dict[str, Array]:
    n, half = params.rows, angles.shape[1]
    y = f64(x[:n]).reshape(n, heads, x.shape[1] // heads)
    cos, sin = np.moveaxis(f64(angles[params.positions()]), -1, 0)[:, :, None, :]
    low, high = y[..., :half].copy(), y[..., half : 2 * half].copy()
    y[..., :half] = low * cos - high * sin
    y[..., half : 2 * half] = high * cos + low * sin
    return {"y": y.reshape(n, x.shape[1])}


def cases() -> Iterator[Case]:
    for heads, width, half in ((4, 32, 4), (2, 256, 32), (3, 32, 16)):
        for name, kinds, segments in mixed_tables((1, 7, 32)):
            total = max(1, sum(n for _, _, n, _ in segments))
            axes = axes_of(T=total, H=heads, K=width, r=half, P=200)

            def build(
                rng: np.random.Generator,
                segments: list[Any] = segments,
                shape: tuple[int, int] = (total, heads * width),
                half: int = half,
            ) -> Any:
                angles = rope_angles(200, half, 1e4)
                return {"params": table(segments), "x": random_rows(rng, *shape), "angles": angles}

            yield Case(
                f"rope/H={heads},K={width},r={half}/{name}",
                "rope",
                axes,
                build,
                {"heads": heads},
                table=kinds,
                classes=("K-09",) if name == "empty" else ("K-04",),
            )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    h, k, half = sig["H"], sig["K"], sig["r"]
    return live_work(6 * h * half, 8 * h * k + 8 * half, 0, live["T"])


SPEC = OpSpec(
    name="rope",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="Su et al. 2021, RoFormer; halves layout, partial rotation",
    operands=(
        PARAMS,
        edge("x", ("T", "H*K"), "rows of heads"),
        given("angles", DType.F32, ("P", "r", "2"), "cos and sin by position"),
        result("y", ("T", "H*K"), "rotated rows"),
    ),
    attrs=("heads",),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=ELEMENTWISE,
)
