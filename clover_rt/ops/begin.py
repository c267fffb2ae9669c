"""begin: apply the page and count deltas of a pass to the device's tables.

    page_table[slot, index] = page        for each page delta
    counts[slot, id] += amount            for each count delta

    page_table  [slots, slot_pages] int32
    counts      [slots, vocab] int32      how often each id was committed in the response
Deltas are applied in order; an id may occur twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.common import EXACT, PARAMS, Array, axes_of, state, table
from clover_rt.spec import Case, DType, OpSpec, Signature, StepParams, Tier, Work


def reference(*, params: StepParams, page_table: Array, counts: Array) -> dict[str, Array]:
    for slot, index, page, _ in params.page_deltas.tolist():
        page_table[slot, index] = page
    for slot, token, amount, _ in params.count_deltas.tolist():
        counts[slot, token] += amount
    return {}


def cases() -> Iterator[Case]:
    axes = axes_of(slots=3, slot_pages=4, vocab=77)
    deltas: dict[str, Any] = {
        "none": {},
        "pages": {"page_deltas": [(0, 0, 5), (2, 3, 11), (0, 0, 7)]},
        "counts": {"count_deltas": [(1, 76, 1), (1, 76, 1), (0, 0, 2), (2, 5, -1)]},
        "both": {"page_deltas": [(1, 1, 3)], "count_deltas": [(1, 1, 1)]},
    }
    for name, more in deltas.items():

        def build(rng: np.random.Generator, more: Any = more) -> Any:
            return {
                "params": table([], **more),
                "page_table": rng.integers(0, 12, (3, 4)).astype(np.int32),
                "counts": rng.integers(0, 5, (3, 77)).astype(np.int32),
            }

        classes = ("K-09",) if name == "none" else ("K-10",)
        yield Case(f"begin/{name}", "begin", axes, build, classes=classes)


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    return Work(0, 0)


SPEC = OpSpec(
    name="begin",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="table update",
    operands=(
        PARAMS,
        state("page_table", DType.I32, ("slots", "slot_pages"), "pages of a slot"),
        state("counts", DType.I32, ("slots", "vocab"), "committed ids of a response"),
    ),
    writes=("page_table", "counts"),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=EXACT,
)
