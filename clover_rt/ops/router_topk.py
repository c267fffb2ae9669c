"""router_topk: the R best allowed experts of each row, and their weights.

    ids = the R largest allowed logits (ties: lower index), falling; -1 where fewer are allowed
    weights = softmax over the chosen logits alone; 0 where the id is -1

    logits   [T, E]
    allowed  [segments, E] uint8, by the row's segment; absent: all
    ids      [T, R] int32     weights [T, R] float32
Since softmax is monotone this equals the softmax over all experts, renormalised over the chosen.
NaN ranks below every number, so ids stay unique and in range; the row's weights are then NaN.
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
    f64,
    given,
    live_work,
    mixed_tables,
    random_rows,
    result,
    table,
)
from clover_rt.spec import (
    Case,
    DType,
    Kind,
    Numerics,
    OpSpec,
    Signature,
    StepLayout,
    StepParams,
    TableClass,
    Tier,
    Tolerance,
    Work,
)


def reference(
    *, params: StepParams, logits: Array, top_k: int, allowed: Array | None = None
) -> dict[str, Array]:
    n = params.rows
    ids = np.full((n, top_k), -1, np.int32)
    weights = np.zeros((n, top_k))
    owner = params.row_segment
    for t, row in enumerate(f64(logits[:n])):
        rank = np.where(np.isnan(row), -np.inf, row)
        order = np.lexsort((np.arange(len(row)), np.isnan(row), -rank))
        if allowed is not None:
            order = order[allowed[owner[t], order] != 0]
        best = order[:top_k]
        ids[t, : len(best)] = best
        chosen = row[best]
        top = chosen.max(initial=-np.inf)
        with np.errstate(invalid="ignore"):
            e = np.exp(chosen - top) if top > -np.inf else np.zeros(len(best))
            if np.isnan(chosen).any():
                e[:] = np.nan
        total = e.sum()
        weights[t, : len(best)] = e / total if total != 0 else 0
    return {"ids": ids, "weights": weights}


def cases() -> Iterator[Case]:
    layout = StepLayout(segments=8)
    for experts, top_k in ((16, 4), (256, 8), (5, 8), (8, 1), (33, 4), (512, 8), (1024, 8)):
        for name, kinds, segments in mixed_tables((1, 33)):
            total = max(1, sum(n for _, _, n, _ in segments))
            axes = axes_of(T=total, E=experts, R=top_k, segments=8)

            def build(
                rng: np.random.Generator,
                segments: list[Any] = segments,
                axes: Mapping[str, int] = axes,
                preview: bool = kinds.has_preview,
            ) -> Any:
                # distinct levels of 0.01 keep every gap far above rounding
                levels = np.arange(axes["E"], dtype=np.float32) * 0.01
                rows = [rng.permutation(levels) for _ in range(axes["T"])]
                out = {"params": table(segments, layout), "logits": np.stack(rows)}
                if preview:
                    allowed = (rng.random((8, axes["E"])) < 0.3).astype(np.uint8)
                    allowed[:, int(rng.integers(axes["E"]))] = 1
                    out["allowed"] = allowed
                return out

            yield Case(
                f"router_topk/E={experts},R={top_k}/{name}",
                "router_topk",
                axes,
                build,
                {"top_k": top_k},
                table=kinds,
                classes=("K-09",) if name == "empty" else _classes(experts),
                layout=layout,
            )
    yield from _special(layout)


def _classes(experts: int) -> tuple[str, ...]:
    if experts > 256:
        return ("K-23",)
    return ("K-29",) if experts == 33 else ("K-14",)


def _special(layout: StepLayout) -> Iterator[Case]:
    rows: dict[str, tuple[str, Any]] = {
        "ties": ("K-12", lambda e: np.zeros(e)),
        "colliding": ("K-12", lambda e: 1 + np.arange(e) * 2.0**-12),
        "huge": ("K-17", lambda e: np.linspace(-1e4, 1e4, e)),
        "very-negative": ("K-16", lambda e: -2.5e5 + np.arange(e)),
        "one-nan": ("K-13", lambda e: np.where(np.arange(e) == 3, np.nan, np.arange(e))),
        "all-nan": ("K-13", lambda e: np.full(e, np.nan)),
        "all-minus-inf": ("K-15", lambda e: np.full(e, -np.inf)),
        "one-finite": ("K-15", lambda e: np.where(np.arange(e) == 7, 0.0, -np.inf)),
    }
    for name, (klass, make) in rows.items():

        def build(rng: np.random.Generator, make: Any = make) -> Any:
            logits = random_rows(rng, 3, 16).round(1)
            logits[1] = make(16)
            logits[0] = rng.permutation(16)
            logits[2] = rng.permutation(16)
            return {"params": table([(Kind.COMMIT, 0, 3, 0)], layout), "logits": logits}

        yield Case(
            f"router_topk/{name}",
            "router_topk",
            axes_of(T=3, E=16, R=4, segments=8),
            build,
            {"top_k": 4},
            table=TableClass.COMMIT,
            classes=(klass,),
            layout=layout,
        )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    return live_work(4 * sig["E"], 4 * sig["E"] + 8 * sig["R"], 0, live["T"])


SPEC = OpSpec(
    name="router_topk",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="top-k routing with renormalised weights",
    operands=(
        PARAMS,
        edge("logits", ("T", "E"), "router logits"),
        given("allowed", DType.U8, ("segments", "E"), "experts a segment may use", optional=True),
        result("ids", ("T", "R"), "chosen experts", DType.I32),
        result("weights", ("T", "R"), "their weights", DType.F32),
    ),
    attrs=("top_k",),
    reference=reference,
    cases=cases,
    work=work,
    tolerance={
        Numerics.F32: Tolerance(4e-6, 1e-6, "one exp and one division in float32, 4x margin"),
        Numerics.BF16: Tolerance(2e-2, 4e-3, "logits rounded to 8 bits"),
    },
)
