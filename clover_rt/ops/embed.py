"""embed: the start of the residual stream.

h = embed_rows(tokens)          h [T, D]
"""

from __future__ import annotations

from clover_rt.ops import embed_rows
from clover_rt.ops.parts import Parts
from clover_rt.spec import Node, OpSpec, TableClass, Tier


def decompose(node: Node, table: TableClass) -> list[Node]:
    parts = Parts(node)
    value = node.operands
    parts.add("rows", "embed_rows", {"embed": value["embed"]}, node.axes, {"h": value["h"]})
    return parts.nodes


SPEC = OpSpec(
    name="embed",
    tier=Tier.LAYER,
    doc=__doc__ or "",
    source=embed_rows.SPEC.source,
    operands=embed_rows.SPEC.operands,
    decompose=decompose,
    cases=lambda: (),
    work=embed_rows.work,
    tolerance=embed_rows.SPEC.tolerance,
)
