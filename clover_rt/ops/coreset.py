"""coreset: the experts that a previewed block may use.

    p = softmax(logits) over all experts; each row of the block adds its R largest p (ties: lower
    index) to their experts' mass; masses are normalised; experts in falling order of mass (ties:
    lower index) are kept while the mass before them is < top_p, the first always

    logits   [T, E]
    allowed  [segments, E] uint8: 1 kept; all 1 for causal segments; rows past the table untouched
Only the rows of the segment count. Masses are float32, summed in sorted order.
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
    f64,
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
    OpSpec,
    Signature,
    StepLayout,
    StepParams,
    TableClass,
    Tier,
    Work,
)


def reference(*, params: StepParams, logits: Array, top_k: int, top_p: float) -> dict[str, Array]:
    segments = params.segments
    allowed = np.ones((len(segments), logits.shape[1]), np.uint8)
    for i, s in enumerate(segments):
        if s.kind is Kind.PREVIEW and top_p < 1 and s.rows:
            mass = block_mass(f64(logits[s.row0 : s.row0 + s.rows]), top_k)
            allowed[i] = kept(mass, top_p)
    return {"allowed": allowed}


def block_mass(logits: Array, top_k: int) -> Array:
    """Return the normalised mass of each expert over the rows of a block, [E]."""
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    mass = np.zeros(logits.shape[1])
    for row in share:
        best = np.argsort(-row, kind="stable")[:top_k]
        mass[best] += row[best]
    out: Array = mass / mass.sum()
    return out


def kept(mass: Array, top_p: float) -> Array:
    """Return 1 for the experts kept: those whose mass before them in falling order is < top_p."""
    order = np.argsort(-mass, kind="stable")
    before = np.cumsum(mass[order]) - mass[order]
    before[0] = 0
    out = np.zeros(len(mass), np.uint8)
    out[order[(before < top_p) | (np.arange(len(mass)) == 0)]] = 1
    return out


def margin(mass: Array, top_p: float) -> float:
    """Return how far an expert is from being kept or not: in cumulated mass, and in its own.

    That is the smallest distance of a cumulated mass from top_p, or the gap between the last
    expert kept and the first not kept where it is smaller.
    """
    ordered = np.sort(mass)[::-1]
    count = int(kept(mass, top_p).sum())
    gap = ordered[count - 1] - ordered[count] if count < len(mass) else np.inf
    return float(min(np.abs(np.cumsum(ordered) - top_p).min(), gap))


def is_fair(params: StepParams, logits: Array, top_k: int, top_p: float, bound: float) -> bool:
    """Is every block's coreset decided by more than `bound` of mass, so that rounding cannot?"""
    blocks = [s for s in params.segments if s.kind is Kind.PREVIEW and s.rows]
    mass = [block_mass(f64(logits[s.row0 : s.row0 + s.rows]), top_k) for s in blocks]
    return top_p >= 1 or all(margin(m, top_p) > bound for m in mass)


def cases() -> Iterator[Case]:
    layout = StepLayout(segments=8)
    for experts, top_k in ((16, 4), (256, 8), (512, 8)):
        for name, kinds, segments in mixed_tables((1, 8, 32)):
            for top_p in (0.5, 0.8, 1.0):
                total = max(1, sum(n for _, _, n, _ in segments))
                axes = axes_of(T=total, E=experts, segments=8)

                def build(
                    rng: np.random.Generator,
                    segments: list[Any] = segments,
                    axes: Mapping[str, int] = axes,
                    top_k: int = top_k,
                    top_p: float = top_p,
                ) -> Any:
                    params = table(segments, layout)
                    while True:
                        logits = random_rows(rng, axes["T"], axes["E"]) * 2
                        # masses are summed in float32, which errs by 1e-6
                        if is_fair(params, logits, top_k, top_p, 1e-5):
                            return {"params": params, "logits": logits}

                yield Case(
                    f"coreset/E={experts},R={top_k},p={top_p:g}/{name}",
                    "coreset",
                    axes,
                    build,
                    {"top_k": top_k, "top_p": top_p},
                    table=kinds,
                    classes=_classes(name, experts),
                    layout=layout,
                )
    yield _ties(layout)


def _classes(name: str, experts: int) -> tuple[str, ...]:
    if name == "empty":
        return ("K-09",)
    return ("K-23",) if experts > 256 else ("K-04",)


def _ties(layout: StepLayout) -> Case:
    """Equal logits: the R lowest experts share the mass, and the lowest of them are kept."""

    def build(rng: np.random.Generator) -> Any:
        params = table([(Kind.PREVIEW, 0, 4, 0)], layout)
        return {"params": params, "logits": np.zeros((4, 16), np.float32)}

    return Case(
        "coreset/ties",
        "coreset",
        axes_of(T=4, E=16, segments=8),
        build,
        {"top_k": 4, "top_p": 0.6},
        table=TableClass.PREVIEW,
        classes=("K-12",),
        layout=layout,
    )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    return live_work(12 * sig["E"], 4 * sig["E"], sig["E"], live["T"])


SPEC = OpSpec(
    name="coreset",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="block coreset of Clover's preview",
    operands=(
        PARAMS,
        edge("logits", ("T", "E"), "router logits"),
        result("allowed", ("segments", "E"), "experts a segment may use", DType.U8),
    ),
    attrs=("top_k", "top_p"),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=EXACT,
)
