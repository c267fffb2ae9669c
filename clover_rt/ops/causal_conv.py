"""causal_conv: depthwise convolution over J rows, then silu; optional taps to the right.

    commit, verify   y[t] = silu(sum_j taps[:, j] ext[t + j])             ext = [ring of slot | u]
    preview          y[t] = silu(... + sum_{d=1..J-1, t+d<rows} right[:, d-1] u[t + d])

    u, y    [T, C]           raw rows of the projection, convolved rows
    taps    [C, J]           tap J - 1 is the current row
    right   [C, J-1]         tap d - 1 reads the row d after, never past the segment
    ring    [slots, J-1, C]  the last J - 1 raw rows of each slot, oldest first
    tape_u  [slots, Q, C]    raw rows of the slot's last verify
The ring is written for commit segments only, after every read of it; a preview behind a commit of
its slot takes its ring rows from that commit's rows. Verify segments write tape_u.
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
    mixed_tables,
    random_rows,
    random_weight,
    result,
    silu,
    state,
    table,
    weight,
)
from clover_rt.spec import Case, DType, Kind, OpSpec, Signature, StepParams, Tier, Weight, Work


def reference(
    *,
    params: StepParams,
    u: Array,
    taps: Weight,
    ring: Array,
    tape_u: Array,
    right: Weight | None = None,
) -> dict[str, Array]:
    w, kernel = f64(taps), taps.shape[1]
    y = np.zeros((params.rows, taps.shape[0]))
    after: dict[int, Array] = {}
    for s in params.segments:
        rows = slice(s.row0, s.row0 + s.rows)
        own = f64(u[rows])
        before = f64(ring[s.slot])
        if s.kind is Kind.PREVIEW:
            before = after.get(s.slot, before)
        ext = np.concatenate([before, own])
        total = sum(w[:, j] * ext[j : j + s.rows] for j in range(kernel))
        if s.kind is Kind.PREVIEW:
            assert right is not None
            for d in range(1, min(kernel, s.rows)):
                total[:-d] += f64(right)[:, d - 1] * own[d:]
        y[rows] = silu(total)
        if s.kind is Kind.COMMIT and s.rows:
            after[s.slot] = ext[s.rows :]
        if s.kind is Kind.VERIFY:
            tape_u[s.slot, : s.rows] = u[rows]
    for slot, rows_after in after.items():
        ring[slot] = rows_after
    return {"y": y}


def cases() -> Iterator[Case]:
    for channels in (56, 160):
        for name, kinds, segments in mixed_tables((1, 2, 3, 7, 8, 32)):
            total = max(1, sum(n for _, _, n, _ in segments))
            axes = axes_of(T=total, C=channels, J=4, slots=3, Q=32)

            def build(
                rng: np.random.Generator,
                c: int = channels,
                segments: list[Any] = segments,
                total: int = total,
            ) -> Any:
                return {
                    "params": table(segments),
                    "u": random_rows(rng, total, c),
                    "taps": random_weight(rng, (c, 4), "bf16", 0.5),
                    "right": random_weight(rng, (c, 3), "bf16", 0.5),
                    "ring": random_rows(rng, 3, 3, c),
                    "tape_u": random_rows(rng, 3, 32, c),
                }

            yield Case(
                f"causal_conv/C={channels}/{name}",
                "causal_conv",
                axes,
                build,
                table=kinds,
                classes=("K-09",) if name == "empty" else ("K-24", "K-26", "K-34"),
            )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    c, j = sig["C"], sig["J"]
    return live_work(4 * j * c, 8 * c, 4 * c * (2 * j - 1), live["T"])


SPEC = OpSpec(
    name="causal_conv",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="depthwise convolution of Gated DeltaNet; right taps of the block operator",
    operands=(
        PARAMS,
        edge("u", ("T", "C"), "raw rows: q, k and v side by side"),
        weight("taps", ("C", "J"), "taps, oldest row first"),
        weight("right", ("C", "J-1"), "taps of later rows, for previews", optional=True),
        state("ring", DType.F32, ("slots", "J-1", "C"), "last raw rows of a slot"),
        state("tape_u", DType.F32, ("slots", "Q", "C"), "raw rows of the last verify"),
        result("y", ("T", "C"), "convolved rows after silu"),
    ),
    writes=("ring", "tape_u"),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=ELEMENTWISE,
)
