"""Graph: nodes and the values between them, checked by axis name; knows no device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy.typing as npt

from clover_rt.errors import BadGraph
from clover_rt.ops import OPS
from clover_rt.spec import DType, HostWeight, Node, Operand, Role, TableClass, evaluate_dim
from clover_rt.spec.op import DYNAMIC, axis_names, show_dim


class ValueKind(Enum):
    """What a value is: made by a node (EDGE), kept between passes (STATE), or given."""

    EDGE = "edge"
    STATE = "state"
    WEIGHT = "weight"
    CONSTANT = "constant"
    PARAMS = "params"


@dataclass(frozen=True)
class Value:
    """One value of a graph; a dynamic axis stands in the shape by its marker (spec.op.DYNAMIC)."""

    name: str
    kind: ValueKind
    dtype: DType
    shape: tuple[int, ...]
    weight: HostWeight | None = None
    data: npt.NDArray[Any] | None = None


PARAMS = Value("params", ValueKind.PARAMS, DType.U8, ())


@dataclass
class Graph:
    """The model as layer ops, in the order in which they run.

    nodes     begin, embed, the layers, pick
    advances  one `advance` a GDN layer, run when a pass advances slots over their tapes
    """

    values: dict[str, Value] = field(default_factory=lambda: {"params": PARAMS})
    nodes: list[Node] = field(default_factory=list)
    advances: list[Node] = field(default_factory=list)

    def state(self, name: str, dtype: DType, shape: tuple[int, ...]) -> str:
        """Add a value that lives between passes; return its name."""
        self.values[name] = Value(name, ValueKind.STATE, dtype, shape)
        return name

    def weight(self, weight: HostWeight, name: str) -> str:
        """Add a weight; its value is named apart, since a node may have the same name."""
        name = f"weight:{name}"
        self.values[name] = Value(name, ValueKind.WEIGHT, DType.EDGE, weight.shape, weight)
        return name

    def constant(self, name: str, dtype: DType, data: npt.NDArray[Any]) -> str:
        self.values[name] = Value(name, ValueKind.CONSTANT, dtype, data.shape, data=data)
        return name

    def add(
        self,
        name: str,
        op: str,
        operands: Mapping[str, str],
        axes: Mapping[str, int],
        **attrs: Any,
    ) -> str:
        """Append a layer op; its output value is named like the node. Return that name."""
        bound = {"params": "params", **operands}
        for out in OPS[op].outputs:
            bound[out.name] = name
        node = Node(name, op, bound, axes, attrs)
        (self.advances if op == "advance" else self.nodes).append(node)
        self.values.update((v.name, v) for v in outputs(node))
        return name

    def check(self) -> None:
        """Raise BadGraph with every operand that does not fit, by node and axis name."""
        problems = check_nodes([*self.nodes, *self.advances], self.values)
        if problems:
            raise BadGraph(
                what=f"the graph has {len(problems)} operands that do not fit",
                evidence="; ".join(problems),
                fix="make the config's sizes and the tensors' shapes agree",
                code="CRT-2001",
            )


def outputs(node: Node) -> list[Value]:
    """Return the values that a node makes, shaped by its op's contract."""
    spec = OPS[node.op]
    return [
        Value(node.operands[o.name], ValueKind.EDGE, o.dtype, spec.shape(o.name, node.axes))
        for o in spec.outputs
        if o.name in node.operands
    ]


def flatten(node: Node, table: TableClass) -> list[Node]:
    """Return a node as primitives: itself, or its decomposition for this table class."""
    decompose = OPS[node.op].decompose
    return [node] if decompose is None else decompose(node, table)


def check_nodes(nodes: Iterable[Node], values: Mapping[str, Value]) -> list[str]:
    """Return every mismatch of nodes in order, each seeing the outputs of those before it."""
    known = dict(values)
    found: list[str] = []
    for node in nodes:
        missing = _missing_axes(node)
        if missing:
            found.append(f"{node.name} ({node.op}): axes {', '.join(missing)} are not given")
            continue
        known.update((v.name, v) for v in outputs(node))
        found += _problems(node, known)
    return found


def _missing_axes(node: Node) -> list[str]:
    """Return the static axes of a node's operands that it gives no size for."""
    shapes = (o.shape for o in OPS[node.op].operands if o.role is not Role.PARAMS)
    named = {axis for shape in shapes for dim in shape for axis in axis_names(dim)}
    return sorted(named - set(node.axes) - set(DYNAMIC))


def _problems(node: Node, values: Mapping[str, Value]) -> list[str]:
    spec = OPS[node.op]
    where = f"{node.name} ({node.op})"
    found = [
        f"{where}: unknown operand {name!r}"
        for name in node.operands
        if name not in {o.name for o in spec.operands}
    ]
    for operand in spec.operands:
        name = node.operands.get(operand.name)
        if name is None:
            if not operand.optional:
                found.append(f"{where}: operand {operand.name!r} is missing")
        elif name not in values:
            found.append(f"{where}: operand {operand.name!r} reads {name!r}, which nothing makes")
        elif operand.role is not Role.PARAMS:
            found += _mismatches(where, operand, values[name], node.axes)
    return found


def _mismatches(where: str, operand: Operand, value: Value, axes: Mapping[str, int]) -> list[str]:
    spec_shape = operand.shape
    what = f"{where}: operand {operand.name!r} = {value.name!r}"
    if len(spec_shape) != len(value.shape):
        return [f"{what} has {len(value.shape)} axes, not [{', '.join(spec_shape)}]"]
    found = []
    for expression, size in zip(spec_shape, value.shape, strict=True):
        want = evaluate_dim(expression, axes)
        if want != size:
            found.append(f"{what}: axis {expression} is {show_dim(want)}, got {show_dim(size)}")
    kinds = {DType.EDGE, DType.F32, DType.KV}
    if value.kind is not ValueKind.WEIGHT and operand.dtype is not value.dtype:
        either_float = operand.dtype in kinds and value.dtype in kinds
        # an op that reads an edge takes float32 results too; states keep their exact type
        if not (either_float and operand.role is Role.INPUT and operand.dtype is DType.EDGE):
            found.append(f"{what}: type is {operand.dtype.value}, got {value.dtype.value}")
    return found
