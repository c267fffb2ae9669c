"""attention: the first half of a gated-attention layer, with its residual.

x = rms_norm(h; 1 + input_norm)
q, k = rope(rms_norm(q x; 1 + q_norm)), rope(rms_norm(k x; 1 + k_norm))      per head
kv_append(k, v x);  o = attend(q, k, v x) * sigmoid(gate x);  h' = h + o_proj o

h, h'  [T, D]     pools and page table are those of kv_append and attend
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.attend import SPEC as ATTEND
from clover_rt.ops.common import (
    PARAMS,
    axes_of,
    edge,
    mixed_tables,
    random_rows,
    random_weight,
    result,
    table,
    weight,
    weight_bytes,
)
from clover_rt.ops.derived import DERIVED
from clover_rt.ops.kv_append import SPEC as APPEND
from clover_rt.ops.kv_append import random_pages
from clover_rt.ops.parts import Parts
from clover_rt.ops.rope import SPEC as ROPE
from clover_rt.ops.rope import rope_angles
from clover_rt.spec import PAGE_ROWS, Case, Node, OpSpec, Signature, TableClass, Tier, Work


def decompose(node: Node, table: TableClass) -> list[Node]:
    p, v, a = Parts(node), node.operands, node.axes
    eps, heads, groups, width = node.attrs["eps"], a["H"], a["G"], a["K"]
    x = p.add(
        "norm",
        "rms_norm",
        {"x": v["h"], "w": v["input_norm"]},
        {"G": 1, "K": a["D"]},
        eps=eps,
        offset=1.0,
    )

    def project(name: str, count: int) -> str:
        return p.add(name, "linear", {"x": x, "w": v[name]}, {"N": count * width, "K": a["D"]})

    def rotate(part: str, raw: str, norm: str, count: int) -> str:
        normed = p.add(
            f"{part}_norm",
            "rms_norm",
            {"x": raw, "w": norm},
            {"G": count, "K": width},
            eps=eps,
            offset=1.0,
        )
        place = {"H": count, "K": width, "r": a["r"], "P": a["P"]}
        operands = {"x": normed, "angles": v["angles"]}
        return p.add(f"{part}_rope", "rope", operands, place, heads=count)

    q, gate = project("q", heads), project("gate", heads)
    k, values = project("k", groups), project("v", groups)
    q = rotate("q", q, v["q_norm"], heads)
    k = rotate("k", k, v["k_norm"], groups)
    cache = {n: v[n] for n in ("page_table", "k_pool", "v_pool")}
    pages = {n: a[n] for n in ("G", "K", "slots", "slot_pages", "pages")}
    p.add("append", "kv_append", {"k": k, "v": values, **cache}, pages, {})
    rows = {"q": q, "k": k, "v": values, **cache}
    o = p.add("attend", "attend", rows, {**pages, "H": heads}, heads=heads)
    gated = p.add("gated", "output_gate", {"o": o, "gate": gate}, {"N": heads * width})
    out = {"x": gated, "w": v["o"], "residual": v["h"]}
    p.add("o", "linear", out, {"N": a["D"], "K": heads * width}, {"y": v["y"]})
    return p.nodes


def cases() -> Iterator[Case]:
    axes = axes_of(D=64, H=4, G=2, K=32, r=4, P=400, slots=3, slot_pages=4, pages=12)
    for fmt in ("bf16", "q4-32"):
        for name, kinds, segments in mixed_tables((1, 8, 32)):
            total = max(1, sum(n for _, _, n, _ in segments))

            def build(
                rng: np.random.Generator,
                segments: list[Any] = segments,
                total: int = total,
                fmt: str = fmt,
            ) -> Any:
                return {
                    "params": table(segments),
                    "h": random_rows(rng, total, 64),
                    "input_norm": random_weight(rng, (64,), "bf16", 0.1),
                    "q": random_weight(rng, (128, 64), fmt),
                    "gate": random_weight(rng, (128, 64), fmt),
                    "k": random_weight(rng, (64, 64), fmt),
                    "v": random_weight(rng, (64, 64), fmt),
                    "o": random_weight(rng, (64, 128), fmt),
                    "q_norm": random_weight(rng, (32,), "bf16", 0.1),
                    "k_norm": random_weight(rng, (32,), "bf16", 0.1),
                    "angles": rope_angles(400, 4, 1e4),
                    "page_table": random_pages(rng, 3, 4),
                    "k_pool": random_rows(rng, 12 * PAGE_ROWS, 64),
                    "v_pool": random_rows(rng, 12 * PAGE_ROWS, 64),
                }

            yield Case(
                f"attention/{fmt}/{name}",
                "attention",
                {**axes, "T": total},
                build,
                {"eps": 1e-6},
                table=kinds,
                classes=("K-09",) if name == "empty" else ("K-04", "K-35"),
            )


MATRICES = (("q", "H"), ("gate", "H"), ("k", "G"), ("v", "G"), ("o", "H"))


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    d, k, rows = sig["D"], sig["K"], live["T"]
    fixed = sum(weight_bytes(sig, name, sig[axis] * k * d) for name, axis in MATRICES)
    mixed = ATTEND.work(sig, live)
    flops = 2 * d * k * sum(sig[axis] for _, axis in MATRICES) * rows + mixed.flops
    return Work(flops, (fixed if rows else 0) + mixed.bytes + 8 * d * rows)


SPEC = OpSpec(
    name="attention",
    tier=Tier.LAYER,
    doc=__doc__ or "",
    source="gated grouped-query attention with partial rotation",
    operands=(
        PARAMS,
        edge("h", ("T", "D"), "residual stream"),
        weight("input_norm", ("D",), "norm of the stream, stored less 1"),
        weight("q", ("H*K", "D"), "projection to queries"),
        weight("gate", ("H*K", "D"), "projection to the output gate"),
        weight("k", ("G*K", "D"), "projection to keys"),
        weight("v", ("G*K", "D"), "projection to values"),
        weight("o", ("D", "H*K"), "projection back to the stream"),
        weight("q_norm", ("K",), "norm of a query, stored less 1"),
        weight("k_norm", ("K",), "norm of a key, stored less 1"),
        ROPE.operand("angles"),
        *(APPEND.operand(n) for n in ("page_table", "k_pool", "v_pool")),
        result("y", ("T", "D"), "residual stream after the mixer"),
    ),
    attrs=("eps",),
    writes=("k_pool", "v_pool"),
    decompose=decompose,
    cases=cases,
    work=work,
    tolerance=DERIVED,
)
