"""embed_rows: the embedding of each row's token.

    h[t] = embed[tokens[t]]        tokens int32 [T] in StepParams

    embed  [vocab, D]
    h      [T, D]
An id outside 0 .. vocab - 1 gives a row of zeros; nothing outside the table is read.
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
    live_work,
    random_weight,
    result,
    table,
    weight,
    weight_bytes,
)
from clover_rt.spec import (
    Case,
    Kind,
    Numerics,
    OpSpec,
    Signature,
    StepParams,
    Tier,
    Tolerance,
    Weight,
    Work,
)


def reference(*, params: StepParams, embed: Weight) -> dict[str, Array]:
    vocab, width = embed.shape
    h = np.zeros((params.rows, width))
    for t, token in enumerate(params.tokens.tolist()):
        if 0 <= token < vocab:
            h[t] = embed[token : token + 1].values()[0]
    return {"h": h}


def cases() -> Iterator[Case]:
    for fmt in ("f32", "bf16", "f16", "q8", "q4-32"):
        for rows in (0, 1, 33):
            axes = axes_of(T=max(rows, 1), vocab=77, D=64)

            def build(rng: np.random.Generator, fmt: str = fmt, rows: int = rows) -> Any:
                tokens = rng.integers(0, 77, rows).astype(np.int32)
                if rows > 8:
                    tokens[3:6] = (-1, 77, 2**31 - 1)
                embed = random_weight(rng, (77, 64), fmt, 1.0)
                segments = [(Kind.COMMIT, 0, rows, 0)] if rows else []
                return {"params": table(segments, tokens=tokens), "embed": embed}

            classes = ("K-09",) if rows == 0 else ("K-04", "K-11")
            yield Case(f"embed_rows/{fmt}/T={rows}", "embed_rows", axes, build, classes=classes)


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    width = sig["D"]
    return live_work(0, weight_bytes(sig, "embed", width) + 4 * width, 0, live["T"])


SPEC = OpSpec(
    name="embed_rows",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="table look-up",
    operands=(
        PARAMS,
        weight("embed", ("vocab", "D"), "one row a token id"),
        result("h", ("T", "D"), "the rows' embeddings"),
    ),
    reference=reference,
    cases=cases,
    work=work,
    tolerance={
        **EXACT,
        Numerics.F32: Tolerance(2e-7, 0.0, "a quantised code times its scale, rounded once"),
        Numerics.BF16: Tolerance(8e-3, 0.0, "the result rounded to 8 bits"),
    },
)
