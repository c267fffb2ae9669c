"""pick: the end of a pass: final norm, head, response controls, candidates.

picks = confidence_topk(rms_norm(h; 1 + norm))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from clover_rt.ops import confidence_topk
from clover_rt.ops.common import random_weight, weight
from clover_rt.ops.parts import Parts
from clover_rt.spec import Case, Node, OpSpec, TableClass, Tier


def decompose(node: Node, table: TableClass) -> list[Node]:
    p, v, a = Parts(node), node.operands, node.axes
    x = p.add(
        "norm",
        "rms_norm",
        {"x": v["h"], "w": v["norm"]},
        {"G": 1, "K": a["D"]},
        eps=node.attrs["eps"],
        offset=1.0,
    )
    operands = {"h": x, **{n: v[n] for n in ("head", "counts", "suppressed")}}
    axes = {n: a[n] for n in ("D", "vocab", "slots", "top")}
    p.add("topk", "confidence_topk", operands, axes, {"picks": v["picks"]}, top=a["top"])
    return p.nodes


def cases() -> Iterator[Case]:
    for case in confidence_topk.cases():

        def build(rng: np.random.Generator, case: Case = case) -> Any:
            norm = random_weight(rng, (case.axes["D"],), "bf16", 0.1)
            return {**case.build(rng), "norm": norm}

        name = case.id.replace("confidence_topk/", "pick/")
        yield replace(case, id=name, op="pick", build=build, attrs={"eps": 1e-6})


_HEAD = confidence_topk.SPEC
SPEC = OpSpec(
    name="pick",
    tier=Tier.LAYER,
    doc=__doc__ or "",
    source=_HEAD.source,
    operands=(
        *_HEAD.operands[:2],
        weight("norm", ("D",), "final norm, stored less 1"),
        *_HEAD.operands[2:],
    ),
    attrs=("eps",),
    decompose=decompose,
    cases=cases,
    work=_HEAD.work,
    tolerance=_HEAD.tolerance,
    check=_HEAD.check,
)
