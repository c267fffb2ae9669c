"""kv_append: write the k and v rows of commit and verify segments into the slot's pages.

    row i of a segment goes to place p = position + i of its slot:
    pool[page_table[slot, p // 64] * 64 + p % 64] = row, rounded to the KV element type

    k, v            [T, G*K]
    page_table      [slots, slot_pages] int32, page numbers
    k_pool, v_pool  [pages*64, G*K]
Preview rows are never written. The engine has reserved every page that is written.
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
    edge,
    given,
    live_work,
    mixed_tables,
    random_rows,
    state,
    table,
)
from clover_rt.spec import (
    PAGE_ROWS,
    Case,
    DType,
    Kind,
    OpSpec,
    Signature,
    StepParams,
    TableClass,
    Tier,
    Work,
)


def pool_rows(page_table: Array, slot: int, first: int, count: int) -> Array:
    """Return the pool rows of places first .. first + count - 1 of a slot, int64 [count]."""
    place = np.arange(first, first + count)
    out: Array = page_table[slot, place // PAGE_ROWS].astype(np.int64) * PAGE_ROWS
    return out + place % PAGE_ROWS


def reference(
    *, params: StepParams, k: Array, v: Array, page_table: Array, k_pool: Array, v_pool: Array
) -> dict[str, Array]:
    for s in params.segments:
        if s.kind is not Kind.PREVIEW:
            places = pool_rows(page_table, s.slot, s.position, s.rows)
            k_pool[places] = k[s.row0 : s.row0 + s.rows]
            v_pool[places] = v[s.row0 : s.row0 + s.rows]
    return {}


def random_pages(rng: np.random.Generator, slots: int, slot_pages: int) -> Array:
    """Return a page table [slots, slot_pages] in which no page occurs twice."""
    return rng.permutation(slots * slot_pages).astype(np.int32).reshape(slots, slot_pages)


def cases() -> Iterator[Case]:
    long = [(Kind.COMMIT, 1, 130, 61)]
    tables = [*mixed_tables((1, 7, 32)), ("over-pages", TableClass.COMMIT, long)]
    for name, kinds, segments in tables:
        total = max(1, sum(n for _, _, n, _ in segments))
        axes = axes_of(T=total, G=2, K=32, slots=3, slot_pages=4, pages=12)

        def build(
            rng: np.random.Generator, segments: list[Any] = segments, total: int = total
        ) -> Any:
            return {
                "params": table(segments),
                "k": random_rows(rng, total, 64),
                "v": random_rows(rng, total, 64),
                "page_table": random_pages(rng, 3, 4),
                "k_pool": random_rows(rng, 12 * PAGE_ROWS, 64),
                "v_pool": random_rows(rng, 12 * PAGE_ROWS, 64),
            }

        classes = ("K-09",) if name == "empty" else ("K-04", "K-34")
        yield Case(f"kv_append/{name}", "kv_append", axes, build, table=kinds, classes=classes)


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    return live_work(0, 16 * sig["G"] * sig["K"], 0, live["T"])


SPEC = OpSpec(
    name="kv_append",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="paged KV cache",
    operands=(
        PARAMS,
        edge("k", ("T", "G*K"), "keys after norm and rotation"),
        edge("v", ("T", "G*K"), "values"),
        given("page_table", DType.I32, ("slots", "slot_pages"), "pages of a slot"),
        state("k_pool", DType.KV, ("pages*64", "G*K"), "keys of all slots"),
        state("v_pool", DType.KV, ("pages*64", "G*K"), "values of all slots"),
    ),
    writes=("k_pool", "v_pool"),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=EXACT,
)
