"""confidence_topk: what the wanted rows would pick, after the response controls.

    l = h[row] . head^T, then the controls of clover_rt.ops.controls
    picks: the `top` largest l (ties: lower id), log-sum-exp and entropy (nats) of softmax(l), the
    l of the row's probe id, and one finite flag

    h           [T, D]              rows after the final norm
    head        [vocab, D]          in any weight format
    counts      [slots, vocab] int32; a row with count_from = c also counts the ids of rows
                c .. row of its segment
    suppressed  [slots, ceil(vocab/32)] uint32 bit mask
    picks       int32 [W+1, 2*top+4], layout in clover_rt.spec.picks_shape
The finite flag is 1 if every h of the table's rows and every wanted logit before the controls is
finite; it is written even when no row is wanted. Logits need not reach memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    random_rows,
    random_weight,
    result,
    table,
    weight,
    weight_bytes,
)
from clover_rt.ops.controls import apply_controls, pack_mask, unpack_mask
from clover_rt.spec import (
    Case,
    Controls,
    DType,
    Kind,
    Mismatch,
    Numerics,
    OpSpec,
    Picks,
    Signature,
    StepParams,
    TableClass,
    Tier,
    Tolerance,
    Wanted,
    Weight,
    Work,
    compare,
    picks_shape,
)


@dataclass(frozen=True, slots=True)
class Ranked(Picks):
    """The reference's picks. every: all logits [W, vocab] after the controls."""

    every: Array


def reference(
    *, params: StepParams, h: Array, head: Weight, counts: Array, suppressed: Array, top: int
) -> dict[str, Any]:
    vocab = head.shape[0]
    segments, tokens = params.segments, params.tokens
    rows = f64(h[: params.rows])
    wanted = params.wanted
    raw = rows[wanted["row"]] @ f64(head).T
    out = Ranked(
        finite=bool(np.isfinite(rows).all() and np.isfinite(raw).all()),
        ids=np.zeros((len(wanted), top), np.int32),
        logits=np.zeros((len(wanted), top)),
        lse=np.zeros(len(wanted)),
        entropy=np.zeros(len(wanted)),
        probe=np.zeros(len(wanted)),
        every=raw,
    )
    for i, w in enumerate(wanted):
        s = segments[w["segment"]]
        seen = counts[s.slot].astype(np.int64)
        if w["count_from"] >= 0:
            np.add.at(seen, tokens[s.row0 + w["count_from"] : w["row"] + 1], 1)
        logits = apply_controls(
            raw[i],
            seen,
            params.controls[w["segment"]],
            int(w["response"]),
            bool(w["think_open"]),
            unpack_mask(suppressed[s.slot], vocab),
        )
        out.every[i] = logits
        order = np.lexsort((np.arange(vocab), -logits))[:top]
        out.ids[i], out.logits[i] = order, logits[order]
        peak = logits.max()
        with np.errstate(invalid="ignore"):
            share = np.exp(logits - peak)
        out.lse[i] = peak + np.log(share.sum())
        p = share / share.sum()
        out.entropy[i] = -(p[p > 0] * np.log(p[p > 0])).sum()
        out.probe[i] = logits[w["probe"]] if w["probe"] >= 0 else 0
    return {"picks": out}


def check(case: Case, got: Any, want: Any, tolerance: Tolerance) -> list[Mismatch]:
    """Compare decoded picks; ids may differ only where the logits are as good as equal."""
    expected: Ranked = want["picks"]
    words = got["picks"]
    n, top = expected.ids.shape
    picks = words if isinstance(words, Picks) else Picks.decode(words, n, top)
    if picks.finite != expected.finite:
        return [Mismatch("picks.finite", (), float(picks.finite), float(expected.finite), 0.0)]
    if not expected.finite:
        return []
    fields = ("logits", "lse", "entropy", "probe")
    found = {name: getattr(picks, name) for name in fields}
    out = compare(case, found, {name: getattr(expected, name) for name in fields}, tolerance)
    for i, row in enumerate(picks.ids.tolist()):
        out += _wrong_ids(i, row, expected, tolerance)
    return out


def _wrong_ids(i: int, row: list[int], expected: Ranked, tolerance: Tolerance) -> list[Mismatch]:
    """Return the ids of one row that may not stand where they stand.

    A kernel that is right within the tolerance may put an id where another belongs if their
    logits differ by less than twice its bound, whether or not the reference returns both.
    """
    every = expected.every[i]
    finite = expected.logits[np.isfinite(expected.logits)]
    base = tolerance.atol * np.abs(finite).max(initial=0.0)
    out = []
    for j in np.flatnonzero(row != expected.ids[i]).tolist():
        id, want_id = row[j], int(expected.ids[i, j])
        if not 0 <= id < len(every):
            out.append(Mismatch("picks.ids", (i, j), id, want_id, 0.0, "no id of the vocabulary"))
            continue
        here, there = float(every[id]), float(every[want_id])
        bound = 2 * (base + tolerance.rtol * max(abs(here), abs(there)))
        if here == there:
            tied = np.flatnonzero(every == here).tolist()
            chosen = [other for other in row if other in tied]
            # what is suppressed has no order
            if np.isfinite(here) and chosen != tied[: len(chosen)]:
                out.append(Mismatch("picks.ids", (i, j), id, want_id, 0.0, "equal logits"))
        elif not abs(here - there) <= bound < np.inf:
            gap = f"gap {abs(here - there):.3g}"
            out.append(Mismatch("picks.ids", (i, j), id, want_id, bound, gap))
    if len(set(row)) != len(row):
        out.append(Mismatch("picks.ids", (i,), len(row), len(row), 0.0, "an id occurs twice"))
    return out


CONTROLS = Controls(0.2, 0.3, 1.1, 6.0, 4, 8, 9.0, 2, 5, think_end=70, stops=(75, 76))


def cases() -> Iterator[Case]:
    block = [Wanted(r, r + 3, think_open=r % 2 == 0) for r in range(32)]
    verify = [Wanted(r, r + 3, r < 4, count_from=1, probe=r) for r in range(8)]
    tables: list[tuple[str, list[Any], list[Wanted]]] = [
        ("preview32", [(Kind.PREVIEW, 1, 32, 5)], block),
        ("verify8", [(Kind.VERIFY, 1, 8, 5)], verify),
        ("last-row", [(Kind.COMMIT, 0, 9, 0)], [Wanted(8, 1)]),
        ("none-wanted", [(Kind.COMMIT, 0, 9, 0)], []),
        (
            "two-slots",
            [(Kind.COMMIT, 0, 1, 3), (Kind.COMMIT, 2, 1, 8)],
            [Wanted(0, 4), Wanted(1, 9)],
        ),
        ("empty", [], []),
    ]
    for name, segments, wanted in tables:
        for fmt in ("f32", "bf16", "q8", "q4-32"):
            for top in (1, 8, 64):
                yield _case(name, segments, wanted, fmt, top)
    yield _case("last-row", *tables[2][1:], "bf16", 8, vocab=66_000)
    for special in ("ties", "nan-row", "inf-row", "nan-unwanted"):
        yield _case("preview8", [(Kind.PREVIEW, 1, 8, 5)], block[:8], "f32", 4, special)


def _case(
    name: str,
    segments: list[Any],
    wanted: list[Wanted],
    fmt: str,
    top: int,
    special: str = "",
    vocab: int = 77,
) -> Case:
    total = sum(n for _, _, n, _ in segments)
    capacity = max(total, 1)

    def build(rng: np.random.Generator) -> Any:
        tokens = rng.integers(0, vocab, total).astype(np.int32)
        rows = random_rows(rng, capacity, 64) * 4
        chosen = wanted
        if special == "ties":
            rows[:] = 0
        if special in ("nan-row", "inf-row"):
            rows[3, 5] = np.nan if special == "nan-row" else np.inf
        if special == "nan-unwanted":
            rows[7, 1], chosen = np.nan, wanted[:4]
        return {
            "params": table(
                segments, tokens=tokens, wanted=chosen, controls=[CONTROLS] * len(segments)
            ),
            "h": rows,
            "head": random_weight(rng, (vocab, 64), fmt),
            "counts": (rng.integers(0, 8, (3, vocab)) // 5).astype(np.int32),
            "suppressed": np.stack([pack_mask(rng.random(vocab) < 0.1) for _ in range(3)]),
        }

    classes = {"ties": ("K-12",), "": ("K-04",)}.get(special, ("K-13", "K-19"))
    if vocab > 77:
        classes, special = ("K-22",), f"vocab={vocab}"
    return Case(
        f"confidence_topk/{fmt}/top={top}/{name}" + (f"/{special}" if special else ""),
        "confidence_topk",
        axes_of(T=capacity, W=max(len(wanted), 1), D=64, vocab=vocab, slots=3, top=top),
        build,
        {"top": top},
        table=TableClass.of(kind for kind, *_ in segments),
        classes=("K-09",) if name == "empty" else classes,
    )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    d, vocab = sig["D"], sig["vocab"]
    wanted = live.get("W", 0)
    head = weight_bytes(sig, "head", vocab * d)
    return live_work(2 * d * vocab, 4 * picks_shape(1, sig["top"])[1], head, wanted)


SPEC = OpSpec(
    name="confidence_topk",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="language-model head, response controls, LowConfidence picks",
    operands=(
        PARAMS,
        edge("h", ("T", "D"), "rows after the final norm"),
        weight("head", ("vocab", "D"), "one row a token id"),
        given("counts", DType.I32, ("slots", "vocab"), "committed ids of a response"),
        given("suppressed", DType.U32, ("slots", "(vocab+31)//32"), "bit mask of banned ids"),
        result("picks", ("W+1", "2*top+4"), "what each wanted row would pick", DType.I32),
    ),
    attrs=("top",),
    reference=reference,
    cases=cases,
    work=work,
    check=check,
    tolerance={
        Numerics.F32: Tolerance(4e-6, 4e-5, "K <= 8192 float32 products, then controls: 4x margin"),
        Numerics.BF16: Tolerance(1e-2, 1e-2, "rows rounded to 8 bits"),
        Numerics.INT8_G32: Tolerance(1e-2, 3e-2, "rows rounded to 1/254 of the largest of 32"),
    },
)
