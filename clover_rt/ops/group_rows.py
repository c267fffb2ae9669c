"""group_rows: sort the (row, choice) pairs of a pass by expert.

    pair f = row * R + choice; order lists the pairs of expert 0, then of expert 1, ...; inside an
    expert by rising f (stable). offsets[e] .. offsets[e+1] is expert e's part of order.

    ids      [T, R] int32      a pair whose id is not in 0 .. E-1 is in no part
    order    [T*R] int32       -1 behind the last part, up to rows * R
    offsets  [E+1] int32
An empty table gives offsets of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.common import (
    EXACT,
    PARAMS,
    Array,
    axes_of,
    given,
    live_work,
    plain_table,
    result,
)
from clover_rt.spec import Case, DType, OpSpec, Signature, StepParams, Tier, Work


def reference(*, params: StepParams, ids: Array, experts: int) -> dict[str, Array]:
    flat = ids[: params.rows].reshape(-1)
    order = np.full(len(flat), -1, np.int32)
    offsets = np.zeros(experts + 1, np.int32)
    filled = 0
    for e in range(experts):
        pairs = np.flatnonzero(flat == e)
        order[filled : filled + len(pairs)] = pairs
        filled += len(pairs)
        offsets[e + 1] = filled
    return {"order": order, "offsets": offsets}


def cases() -> Iterator[Case]:
    for experts, top_k in ((16, 4), (256, 8)):
        for rows in (0, 1, 7, 33, 64):
            for kind in ("random", "one-expert", "last-expert", "out-of-range"):
                axes = axes_of(T=max(rows, 1), E=experts, R=top_k)

                def build(
                    rng: np.random.Generator,
                    kind: str = kind,
                    rows: int = rows,
                    experts: int = experts,
                    top_k: int = top_k,
                ) -> Any:
                    shape = (max(rows, 1), top_k)
                    ids = rng.integers(0, experts, shape).astype(np.int32)
                    if kind.endswith("expert"):
                        ids[:] = -1
                        ids[:, 0] = experts - 1 if kind == "last-expert" else 3
                    if kind == "out-of-range":
                        bad = np.array([-1, experts, 2**31 - 1, -(2**31)], np.int32)
                        hit = rng.random(shape) < 0.4
                        ids[hit] = rng.choice(bad, int(hit.sum()))
                    return {"params": plain_table(rows), "ids": ids}

                classes = {"out-of-range": ("K-11",), "random": ("K-10",)}.get(kind, ("K-08",))
                yield Case(
                    f"group_rows/E={experts},R={top_k}/T={rows}/{kind}",
                    "group_rows",
                    axes,
                    build,
                    {"experts": experts},
                    classes=("K-09",) if rows == 0 else classes,
                )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    return live_work(0, 8 * sig["R"], 4 * sig["E"], live["T"])


SPEC = OpSpec(
    name="group_rows",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="counting sort",
    operands=(
        PARAMS,
        given("ids", DType.I32, ("T", "R"), "chosen experts"),
        result("order", ("T*R",), "pairs by expert", DType.I32),
        result("offsets", ("E+1",), "where each expert's pairs start", DType.I32),
    ),
    attrs=("experts",),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=EXACT,
)
