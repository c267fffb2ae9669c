"""attend: attention of each row over its slot's pages and over the rows of its own segment.

    y_t = softmax(q_t . k_s / sqrt(K)) v_s         query head h reads KV head h // (H/G)

A row sees the slot's places 0 .. position - 1 in the pages, and from the operands k and v, rounded
to the KV element type first, the rows of its own segment: causal segments up to itself, previews
all of them, also later ones. A preview behind a commit of its slot finds that commit's rows in the
pages already.

    q, y            [T, H*K]
    k, v            [T, G*K]
    page_table      [slots, slot_pages] int32
    k_pool, v_pool  [pages*64, G*K]
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
from clover_rt.ops.kv_append import pool_rows, random_pages
from clover_rt.spec import (
    PAGE_ROWS,
    Case,
    DType,
    Kind,
    Numerics,
    OpSpec,
    Signature,
    StepParams,
    TableClass,
    Tier,
    Tolerance,
    Work,
)


def reference(
    *,
    params: StepParams,
    q: Array,
    k: Array,
    v: Array,
    page_table: Array,
    k_pool: Array,
    v_pool: Array,
    heads: int,
) -> dict[str, Array]:
    n = params.rows
    width = q.shape[1] // heads
    groups = k.shape[1] // width
    y = np.zeros((n, heads, width))
    queries = f64(q[:n]).reshape(n, heads, width)
    # the operands keep their precision in a float64 reference run whose KV type is float64
    own_k = f64(k[:n].astype(k_pool.dtype)).reshape(n, groups, width)
    own_v = f64(v[:n].astype(v_pool.dtype)).reshape(n, groups, width)
    for s in params.segments:
        places = pool_rows(page_table, s.slot, 0, s.position)
        past_k = f64(k_pool[places]).reshape(-1, groups, width)
        past_v = f64(v_pool[places]).reshape(-1, groups, width)
        for i in range(s.rows):
            seen = s.rows if s.kind is Kind.PREVIEW else i + 1
            rows = slice(s.row0, s.row0 + seen)
            keys = np.concatenate([past_k, own_k[rows]]).repeat(heads // groups, axis=1)
            values = np.concatenate([past_v, own_v[rows]]).repeat(heads // groups, axis=1)
            logits = np.einsum("hk,shk->hs", queries[s.row0 + i], keys) / np.sqrt(width)
            share = np.exp(logits - logits.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            y[s.row0 + i] = np.einsum("hs,shk->hk", share, values)
    return {"y": y.reshape(n, q.shape[1])}


def cases() -> Iterator[Case]:
    for heads, groups, width in ((4, 2, 32), (8, 1, 256), (3, 3, 20)):
        tables = list(mixed_tables((1, 7, 32)))
        tables.append(("preview32@0", TableClass.PREVIEW, [(Kind.PREVIEW, 0, 32, 0)]))
        tables.append(("commit65@63", TableClass.COMMIT, [(Kind.COMMIT, 1, 65, 63)]))
        tables.append(("verify8@200", TableClass.VERIFY, [(Kind.VERIFY, 1, 8, 200)]))
        for sharp in (1.0, 300.0) if width != 20 else (1.0,):
            for name, kinds, segments in tables:
                total = max(1, sum(n for _, _, n, _ in segments))
                axes = axes_of(T=total, H=heads, G=groups, K=width, slots=3, slot_pages=4, pages=12)

                def build(
                    rng: np.random.Generator,
                    segments: list[Any] = segments,
                    axes: Mapping[str, int] = axes,
                    sharp: float = sharp,
                ) -> Any:
                    rows, columns = axes["T"], axes["G"] * axes["K"]
                    return {
                        "params": table(segments),
                        "q": random_rows(rng, rows, axes["H"] * axes["K"]) * np.float32(sharp),
                        "k": random_rows(rng, rows, columns),
                        "v": random_rows(rng, rows, columns),
                        "page_table": random_pages(rng, 3, 4),
                        "k_pool": random_rows(rng, 12 * PAGE_ROWS, columns),
                        "v_pool": random_rows(rng, 12 * PAGE_ROWS, columns),
                    }

                yield Case(
                    f"attend/H={heads},K={width}/x{sharp:g}/{name}",
                    "attend",
                    axes,
                    build,
                    {"heads": heads},
                    table=kinds,
                    classes=_classes(name, sharp, width),
                )


def _classes(name: str, sharp: float, width: int) -> tuple[str, ...]:
    if name == "empty":
        return ("K-09",)
    if width == 20:
        return ("K-27",)
    return ("K-16", "K-17") if sharp > 1 else ("K-04", "K-35")


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    h, g, k = sig["H"], sig["G"], sig["K"]
    keys = live.get("L", 0)
    size = sig.dtype("k_pool").itemsize
    rows = live["T"]
    return live_work(4 * h * k * keys, 8 * h * k, 2 * size * g * k * keys, rows)


SPEC = OpSpec(
    name="attend",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="grouped-query attention over a paged cache, mixed masks",
    operands=(
        PARAMS,
        edge("q", ("T", "H*K"), "queries after norm and rotation"),
        edge("k", ("T", "G*K"), "keys of the pass"),
        edge("v", ("T", "G*K"), "values of the pass"),
        given("page_table", DType.I32, ("slots", "slot_pages"), "pages of a slot"),
        given("k_pool", DType.KV, ("pages*64", "G*K"), "keys of all slots"),
        given("v_pool", DType.KV, ("pages*64", "G*K"), "values of all slots"),
        result("y", ("T", "H*K"), "mixed values"),
    ),
    attrs=("heads",),
    reference=reference,
    cases=cases,
    work=work,
    tolerance={
        Numerics.F32: Tolerance(
            1e-4, 1e-4, "logits to 1e3 in float32 err by 6e-5, which e^x turns into a share of 6e-5"
        ),
        Numerics.BF16: Tolerance(5e-2, 5e-2, "logits from 8-bit operands: 2^-8 of logits to 8"),
    },
)
