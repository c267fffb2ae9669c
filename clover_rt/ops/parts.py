"""Write a layer op's decomposition: primitive nodes, one call a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clover_rt.spec import Node


class Parts:
    """The nodes of one decomposition, named `parent/part`, with their intermediate values."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: list[Node] = []

    def add(
        self,
        part: str,
        op: str,
        operands: Mapping[str, str],
        axes: Mapping[str, int],
        out: Mapping[str, str] | None = None,
        **attrs: Any,
    ) -> str:
        """Append a primitive; return the name of its value.

        operands  operand -> value name; the parent's params operand is added
        out       output operand -> value name; one output `y` named after the part by default
        """
        name = f"{self.node.name}/{part}"
        results = {"y": name} if out is None else out
        bound = {"params": self.node.operands["params"], **operands, **results}
        self.nodes.append(Node(name, op, bound, axes, attrs))
        return next(iter(results.values()), "")
