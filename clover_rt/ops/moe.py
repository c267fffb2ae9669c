"""moe: the second half of a layer: routed experts, a gated shared expert, and the residual.

x = rms_norm(h; 1 + post_norm);  logits = router x
ids, weights = router_topk(logits, coreset(logits))
h' = h + sum of weights * experts(x) + sigmoid(shared_scale x) shared(x)

h, h'  [T, D]     top_p >= 1: no coreset
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
    mixed_tables,
    random_rows,
    random_weight,
    result,
    table,
    vector,
    weight,
    weight_bytes,
)
from clover_rt.ops.coreset import is_fair
from clover_rt.ops.derived import DERIVED
from clover_rt.ops.parts import Parts
from clover_rt.spec import (
    Case,
    Node,
    OpSpec,
    Signature,
    StepLayout,
    StepParams,
    TableClass,
    Tier,
    Weight,
    Work,
)


def decompose(node: Node, table: TableClass) -> list[Node]:
    p, v, a = Parts(node), node.operands, node.axes
    d, experts, top_k = a["D"], a["E"], a["R"]
    x = p.add(
        "norm",
        "rms_norm",
        {"x": v["h"], "w": v["post_norm"]},
        {"G": 1, "K": d},
        eps=node.attrs["eps"],
        offset=1.0,
    )
    logits = p.add("router", "linear", {"x": x, "w": v["router"]}, {"N": experts, "K": d})
    top_p = node.attrs["top_p"]
    allowed = {}
    if table.has_preview and top_p < 1:
        allowed["allowed"] = p.add(
            "coreset",
            "coreset",
            {"logits": logits},
            {"E": experts, "segments": a["segments"]},
            {"allowed": f"{node.name}/allowed"},
            top_k=top_k,
            top_p=top_p,
        )
    routes = {"ids": f"{node.name}/ids", "weights": f"{node.name}/weights"}
    p.add(
        "route",
        "router_topk",
        {"logits": logits, **allowed},
        {"E": experts, "R": top_k, "segments": a["segments"]},
        routes,
        top_k=top_k,
    )
    groups = {"order": f"{node.name}/order", "offsets": f"{node.name}/offsets"}
    p.add(
        "group",
        "group_rows",
        {"ids": routes["ids"]},
        {"E": experts, "R": top_k},
        groups,
        experts=experts,
    )
    y = p.add(
        "experts",
        "expert_gemm",
        {
            "x": x,
            **groups,
            "gate": v["expert_gate"],
            "up": v["expert_up"],
            "down": v["expert_down"],
        },
        {"E": experts, "R": top_k, "D": d, "F": a["F"]},
        top_k=top_k,
    )
    shared = p.add(
        "shared",
        "expert_gemm",
        {"x": x, "gate": v["shared_gate"], "up": v["shared_up"], "down": v["shared_down"]},
        {"E": 1, "R": 1, "D": d, "F": a["Fs"]},
        top_k=1,
    )
    scale = p.add("shared_scale", "linear", {"x": x, "w": v["shared_scale"]}, {"N": 1, "K": d})
    p.add(
        "combine",
        "combine",
        {"y": y, **routes, "shared": shared, "shared_gate": scale, "residual": v["h"]},
        {"R": top_k, "D": d},
        {"h": v["y"]},
    )
    return p.nodes


# 8 x the deviation of a block's mass when its logits are rounded to 8 bits
CORESET_MARGIN = 4e-3


def separated_router(
    rng: np.random.Generator,
    params: StepParams,
    h: Array,
    norm: Weight,
    experts: int,
    top_k: int,
    top_p: float,
) -> Array:
    """Return router rows [E, D] that give every row of h well separated logits.

    The routing of a case must not hang on rounding, so the router is solved for: it maps each row
    of the normalised stream to levels about 0.25 apart, in an order around one that all rows
    share. Orders are drawn until every block's coreset is decided by a margin.
    """
    x = h / np.sqrt((h**2).mean(axis=1, keepdims=True) + 1e-6) * (1 + f64(norm))
    while True:
        shared = rng.permutation(experts) * 0.5
        order = np.argsort(shared + 1.5 * rng.standard_normal((len(h), experts)), axis=1)
        levels = np.arange(experts) * 0.25 + rng.uniform(-0.05, 0.05, order.shape)
        want = np.empty(order.shape)
        np.put_along_axis(want, order, levels, axis=1)
        if is_fair(params, want, top_k, top_p, CORESET_MARGIN):
            rows: Array = (np.linalg.pinv(x) @ want).T
            return rows


def cases() -> Iterator[Case]:
    layout = StepLayout(segments=8)
    axes = axes_of(D=128, E=16, R=4, F=32, Fs=64, segments=8)
    for fmt in ("bf16", "q4-32"):
        for top_p in (0.8, 1.0):
            for name, kinds, segments in mixed_tables((1, 8, 32)):
                total = max(1, sum(n for _, _, n, _ in segments))

                def build(
                    rng: np.random.Generator,
                    segments: list[Any] = segments,
                    total: int = total,
                    fmt: str = fmt,
                    top_p: float = top_p,
                ) -> Any:
                    params = table(segments, layout)
                    h = random_rows(rng, total, 128)
                    norm = random_weight(rng, (128,), "bf16", 0.1)
                    router = separated_router(rng, params, h, norm, 16, 4, top_p)
                    return {
                        "params": params,
                        "h": h,
                        "post_norm": norm,
                        "router": vector(router),
                        "expert_gate": random_weight(rng, (16, 32, 128), fmt),
                        "expert_up": random_weight(rng, (16, 32, 128), fmt),
                        "expert_down": random_weight(rng, (16, 128, 32), fmt),
                        "shared_gate": random_weight(rng, (1, 64, 128), fmt),
                        "shared_up": random_weight(rng, (1, 64, 128), fmt),
                        "shared_down": random_weight(rng, (1, 128, 64), fmt),
                        "shared_scale": random_weight(rng, (1, 128)),
                    }

                yield Case(
                    f"moe/{fmt}/p={top_p:g}/{name}",
                    "moe",
                    {**axes, "T": total},
                    build,
                    {"eps": 1e-6, "top_p": top_p},
                    table=kinds,
                    classes=("K-09",) if name == "empty" else ("K-04", "K-08"),
                    layout=layout,
                )


EXPERTS = ("expert_gate", "expert_up", "expert_down")
SHARED = ("shared_gate", "shared_up", "shared_down")


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    """Weights are counted for `live["experts"]` distinct experts, all of them where not given."""
    d, f, fs, e, r = (sig[a] for a in ("D", "F", "Fs", "E", "R"))
    rows = live["T"]
    used = live.get("experts", min(e, rows * r))
    fixed = sum(weight_bytes(sig, w, used * d * f) for w in EXPERTS)
    fixed += sum(weight_bytes(sig, w, d * fs) for w in SHARED) if rows else 0
    fixed += weight_bytes(sig, "router", e * d) if rows else 0
    return Work((6 * d * (r * f + fs) + 2 * d * e) * rows, fixed + 8 * d * rows)


SPEC = OpSpec(
    name="moe",
    tier=Tier.LAYER,
    doc=__doc__ or "",
    source="mixture of experts with a gated shared expert and Clover's coreset",
    operands=(
        PARAMS,
        edge("h", ("T", "D"), "residual stream"),
        weight("post_norm", ("D",), "norm of the stream, stored less 1"),
        weight("router", ("E", "D"), "router"),
        weight("expert_gate", ("E", "F", "D"), "gate projections"),
        weight("expert_up", ("E", "F", "D"), "up projections"),
        weight("expert_down", ("E", "D", "F"), "down projections"),
        weight("shared_gate", ("1", "Fs", "D"), "gate projection of the shared expert"),
        weight("shared_up", ("1", "Fs", "D"), "up projection of the shared expert"),
        weight("shared_down", ("1", "D", "Fs"), "down projection of the shared expert"),
        weight("shared_scale", ("1", "D"), "gate of the shared expert"),
        result("y", ("T", "D"), "residual stream after the layer"),
    ),
    attrs=("eps", "top_p"),
    decompose=decompose,
    cases=cases,
    work=work,
    tolerance=DERIVED,
)
