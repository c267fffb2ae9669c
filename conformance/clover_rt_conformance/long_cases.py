"""Cases that are long or large: too dear, or too wide for 32-bit offsets, for a contract's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clover_rt.ops.common import axes_of, random_rows, table
from clover_rt.spec import PAGE_ROWS, Case, Format, Kind, TableClass, Weight

BOUNDARY = 2**31


def long_cases() -> Iterator[Case]:
    """Yield attention over 4 096 to 131 072 keys, and rows on both sides of 2^31 numbers."""
    for keys in (4096, 32_768, 131_072):
        yield _long_attention(keys)
    yield _wide_table()


def _long_attention(keys: int) -> Case:
    """One query block at the end of a context; its page table runs backwards."""
    pages, rows = keys // PAGE_ROWS + 1, 32
    axes = axes_of(T=rows, H=2, G=1, K=32, slots=1, slot_pages=pages, pages=pages)

    def build(rng: np.random.Generator) -> Any:
        return {
            "params": table([(Kind.PREVIEW, 0, rows, keys)]),
            "q": random_rows(rng, rows, 64),
            "k": random_rows(rng, rows, 32),
            "v": random_rows(rng, rows, 32),
            "page_table": np.arange(pages, dtype=np.int32)[None, ::-1].copy(),
            "k_pool": random_rows(rng, pages * PAGE_ROWS, 32),
            "v_pool": random_rows(rng, pages * PAGE_ROWS, 32),
        }

    return Case(
        f"attend/long/keys={keys}",
        "attend",
        axes,
        build,
        {"heads": 2},
        table=TableClass.PREVIEW,
        classes=("K-38",),
    )


def _wide_table() -> Case:
    """An embedding of more than 2^31 numbers, zero but for rows around the boundary."""
    width = 2048
    edge = BOUNDARY // width
    rows = [0, edge - 1, edge, edge + 1, edge + 100]
    vocab = edge + 128

    def build(rng: np.random.Generator) -> Any:
        codes = np.zeros((vocab, width), np.float16)
        codes[rows] = rng.standard_normal((len(rows), width))
        tokens = np.array(rows, np.int32)
        params = table([(Kind.COMMIT, 0, len(rows), 0)], tokens=tokens)
        return {"params": params, "embed": Weight(Format.F16, codes.shape, codes)}

    axes = axes_of(T=len(rows), vocab=vocab, D=width)
    return Case("embed_rows/past-2^31", "embed_rows", axes, build, classes=("K-21",))
