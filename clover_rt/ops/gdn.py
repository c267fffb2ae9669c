"""gdn: the first half of a Gated DeltaNet layer, with its residual.

x = rms_norm(h; 1 + input_norm);  u = qkv x;  z = z x;  a = a x;  b = b x
y = causal_conv(u);  g, beta = gdn_gates(a, b);  o = block_scan(y)  (preview rows: block_memory)
h' = h + out gated_norm(o, z)

h, h'  [T, D]     the states and tapes are those of causal_conv and block_scan
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.block_scan import SPEC as SCAN
from clover_rt.ops.block_scan import random_scan
from clover_rt.ops.causal_conv import SPEC as CONV
from clover_rt.ops.common import (
    PARAMS,
    axes_of,
    edge,
    mixed_tables,
    random_rows,
    random_weight,
    result,
    table,
    vector,
    weight,
    weight_bytes,
)
from clover_rt.ops.derived import DERIVED
from clover_rt.ops.parts import Parts
from clover_rt.spec import Case, Node, OpSpec, Signature, TableClass, Tier, Work

TAPES = ("tape_k", "tape_v", "tape_g", "tape_beta")


def decompose(node: Node, table: TableClass) -> list[Node]:
    p, v, a = Parts(node), node.operands, node.axes
    wide, heads, eps = a["H"] * a["V"], a["H"], node.attrs["eps"]
    x = p.add(
        "norm",
        "rms_norm",
        {"x": v["h"], "w": v["input_norm"]},
        {"G": 1, "K": a["D"]},
        eps=eps,
        offset=1.0,
    )

    def project(part: str, name: str, width: int) -> str:
        return p.add(part, "linear", {"x": x, "w": v[name]}, {"N": width, "K": a["D"]})

    u = project("qkv", "qkv", 2 * a["G"] * a["K"] + wide)
    z = project("z", "z", wide)
    gates = {"g": f"{node.name}/g", "beta": f"{node.name}/beta"}
    p.add(
        "gates",
        "gdn_gates",
        {
            "a": project("a", "a", heads),
            "b": project("b", "b", heads),
            "A_log": v["A_log"],
            "dt_bias": v["dt_bias"],
        },
        {"H": heads},
        gates,
    )
    right = {"right": v["right"]} if table.has_preview and "right" in v else {}
    y = p.add(
        "conv",
        "causal_conv",
        {"u": u, "taps": v["conv"], "ring": v["ring"], "tape_u": v["tape_u"], **right},
        {k: a[k] for k in ("C", "J", "slots", "Q")},
    )
    memory = {k: a[k] for k in ("G", "H", "K", "V", "slots")}
    tapes = {t: v[t] for t in TAPES}
    o = p.add(
        "scan",
        "block_scan",
        {"qkv": y, **gates, "S": v["S"], **tapes},
        {**memory, "Q": a["Q"]},
        {"o": f"{node.name}/o"},
    )
    if table.has_preview:
        block = {k: v[k] for k in ("logit_scale", "history_bias", "history_c")}
        operands = {"qkv": y, "g": gates["g"], "S": v["S"], **block, "o": o}
        p.add("memory", "block_memory", operands, memory, {})
    normed = p.add(
        "gate",
        "gated_norm",
        {"o": o, "z": z, "w": v["norm"]},
        {"H": heads, "V": a["V"]},
        eps=eps,
    )
    out = {"x": normed, "w": v["out"], "residual": v["h"]}
    p.add("out", "linear", out, {"N": a["D"], "K": wide}, {"y": v["y"]})
    return p.nodes


def cases() -> Iterator[Case]:
    axes = axes_of(D=64, G=2, H=4, K=16, V=32, C=192, J=4, slots=3, Q=32)
    for fmt in ("bf16", "q4-32"):
        for name, kinds, segments in mixed_tables((1, 8, 32)):
            total = max(1, sum(n for _, _, n, _ in segments))

            def build(
                rng: np.random.Generator,
                segments: list[Any] = segments,
                total: int = total,
                fmt: str = fmt,
                preview: bool = kinds.has_preview,
            ) -> Any:
                a = {**axes, "T": total}
                scan = random_scan(rng, total, a)
                out = {
                    "params": table(segments),
                    "h": random_rows(rng, total, 64),
                    "input_norm": random_weight(rng, (64,), "bf16", 0.1),
                    "qkv": random_weight(rng, (192, 64), fmt),
                    "z": random_weight(rng, (128, 64), fmt),
                    "a": random_weight(rng, (4, 64)),
                    "b": random_weight(rng, (4, 64)),
                    "conv": random_weight(rng, (192, 4), "bf16", 0.5),
                    "A_log": vector(np.log(rng.uniform(0.05, 4, 4))),
                    "dt_bias": vector(rng.uniform(-2, 1, 4)),
                    "norm": random_weight(rng, (32,), "bf16", 1.0),
                    "out": random_weight(rng, (64, 128), fmt),
                    "ring": random_rows(rng, 3, 3, 192),
                    "tape_u": random_rows(rng, 3, 32, 192),
                    **{k: scan[k] for k in ("S", *TAPES)},
                }
                if preview:
                    out["right"] = random_weight(rng, (192, 3), "bf16", 0.5)
                    out["logit_scale"] = vector(rng.uniform(2, 8, 4))
                    out["history_bias"] = vector(rng.uniform(0, 3, 4))
                    out["history_c"] = vector(rng.uniform(-2, 1, 4))
                return out

            classes = ("K-09",) if name == "empty" else ("K-24", "K-26", "K-35")
            yield Case(
                f"gdn/{fmt}/{name}",
                "gdn",
                {**axes, "T": total},
                build,
                {"eps": 1e-6},
                table=kinds,
                classes=classes,
            )


MATRICES = (("qkv", "C"), ("z", "HV"), ("a", "H"), ("b", "H"), ("out", "HV"))


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    d, h, v, k = sig["D"], sig["H"], sig["V"], sig["K"]
    width = {"C": sig["C"], "HV": h * v, "H": h}
    fixed = sum(weight_bytes(sig, name, width[axis] * d) for name, axis in MATRICES)
    flops = 2 * d * sum(width[axis] for _, axis in MATRICES) + 8 * h * k * v
    rows = live["T"]
    return Work(flops * rows, (fixed + 8 * h * k * v if rows else 0) + 8 * d * rows)


SPEC = OpSpec(
    name="gdn",
    tier=Tier.LAYER,
    doc=__doc__ or "",
    source="Gated DeltaNet mixer with Clover's block operator",
    operands=(
        PARAMS,
        edge("h", ("T", "D"), "residual stream"),
        weight("input_norm", ("D",), "norm of the stream, stored less 1"),
        weight("qkv", ("C", "D"), "projection to q, k, v"),
        weight("z", ("H*V", "D"), "projection to the output gate"),
        weight("a", ("H", "D"), "projection to the decay input"),
        weight("b", ("H", "D"), "projection to the write strength"),
        weight("conv", ("C", "J"), "taps"),
        weight("right", ("C", "J-1"), "taps of later rows", optional=True),
        weight("A_log", ("H",), "log of the decay rate"),
        weight("dt_bias", ("H",), "bias of the decay input"),
        weight("logit_scale", ("H",), "scale of the block logits", optional=True),
        weight("history_bias", ("H",), "logit of the history slot", optional=True),
        weight("history_c", ("H",), "its slope in ln(B / 32)", optional=True),
        weight("norm", ("V",), "scale of a value column"),
        weight("out", ("D", "H*V"), "projection back to the stream"),
        *(CONV.operand(n) for n in ("ring", "tape_u")),
        *(SCAN.operand(n) for n in ("S", *TAPES)),
        result("y", ("T", "D"), "residual stream after the mixer"),
    ),
    attrs=("eps",),
    writes=("ring", "tape_u", "S", *TAPES),
    decompose=decompose,
    cases=cases,
    work=work,
    tolerance=DERIVED,
)
