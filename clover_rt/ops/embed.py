"""embed: the start of the residual stream.

h = embed_rows(tokens)          h [T, D]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clover_rt.ops import embed_rows
from clover_rt.ops.parts import Parts
from clover_rt.spec import Case, Node, OpSpec, TableClass, Tier


def decompose(node: Node, table: TableClass) -> list[Node]:
    parts = Parts(node)
    value = node.operands
    parts.add("rows", "embed_rows", {"embed": value["embed"]}, node.axes, {"h": value["h"]})
    return parts.nodes


def cases() -> Iterator[Case]:
    for case in embed_rows.cases():
        yield replace(case, id=case.id.replace("embed_rows/", "embed/"), op="embed")


SPEC = OpSpec(
    name="embed",
    tier=Tier.LAYER,
    doc=__doc__ or "",
    source=embed_rows.SPEC.source,
    operands=embed_rows.SPEC.operands,
    decompose=decompose,
    cases=cases,
    work=embed_rows.work,
    tolerance=embed_rows.SPEC.tolerance,
)
