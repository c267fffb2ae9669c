"""Which kernel runs each node: native, composed, on the host, or by the reference; and why."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from clover_rt.backend import Device, Kernel
from clover_rt.errors import PluginFailed, Unsupported
from clover_rt.graph import Graph, Value, ValueKind, flatten, outputs
from clover_rt.ops import OPS
from clover_rt.plan.border import ANSWER, DESCRIBE, NAMES, SUPPORTS, border, source
from clover_rt.plan.reference import ReferenceKernel
from clover_rt.spec import DType, Node, Numerics, Precision, Role, Signature, StepLayout, TableClass

BUCKETS = (1, 16, 32, 64, 512, 2048)
ESSENTIAL = (TableClass.COMMIT, TableClass.PREVIEW, TableClass.VERIFY)
TOPS = (1, 64)


class Place(Enum):
    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Choice:
    """Where one node runs and why not somewhere better.

    how  "native", "host" (the cpu backend's kernel) or "reference"
    numerics, row_invariant  what the kernel says of itself at the smallest capacity
    """

    node: str
    op: str
    place: Place
    how: str
    kernel: Kernel
    numerics: Numerics
    row_invariant: bool
    reason: str = ""


class Signatures:
    """Signatures of nodes on one device: types by its precision, capacities by bucket."""

    def __init__(
        self, device: Device, precision: Precision, layout: StepLayout, context: int
    ) -> None:
        self.precision = precision
        self.layout = layout
        self.context = context
        with border(device, DESCRIBE, "name its element types"):
            edge, kv = device.dtypes(precision)
        self._types = {DType.EDGE: edge, DType.KV: kv}

    def dtype(self, dtype: DType) -> str:
        return self._types.get(dtype, dtype.value)

    def of(
        self, node: Node, table: TableClass, bucket: int, values: Mapping[str, Value]
    ) -> Signature:
        spec = OPS[node.op]
        dtypes, formats = [], []
        for o in spec.operands:
            name = node.operands.get(o.name)
            if name is None:
                continue
            if o.role is Role.WEIGHT:
                weight = values[name].weight
                assert weight is not None
                formats.append((o.name, weight.format, weight.group))
            elif o.role is not Role.PARAMS:
                dtypes.append((o.name, self.dtype(values[name].dtype)))
        wanted = min(bucket, self.layout.wanted)
        dynamic = {"T": bucket, "W": wanted, "L": self.context}
        return Signature(
            node.op,
            table,
            self.precision,
            tuple(sorted({**node.axes, **dynamic}.items())),
            tuple(dtypes),
            tuple(formats),
            tuple(sorted(node.attrs.items())),
            self.layout,
        )


class Placement:
    """The choices for a whole graph on one device, with an optional host behind it.

    choices   by node name: layer ops that run whole, and primitives of those that do not
    expanded  layer ops that run by their decomposition
    buckets   row buckets of each table class that every native kernel takes
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        host: Device | None,
        precision: Precision,
        layout: StepLayout,
        context: int,
        has_preview: bool,
        allow_reference: bool = False,
    ) -> None:
        self.graph = graph
        self.allow_reference = allow_reference
        self.devices = {Place.DEVICE: device}
        if host is not None and host is not device:
            self.devices[Place.HOST] = host
        self.signatures = {
            place: Signatures(d, precision, layout, context) for place, d in self.devices.items()
        }
        self.values = dict(graph.values)
        self.choices: dict[str, Choice] = {}
        self.expanded: set[str] = set()
        self._answers: dict[tuple[Place, Signature], str] = {}
        self.classes = [c for c in TableClass if has_preview or not c.has_preview]
        self.essential = [c for c in ESSENTIAL if c in self.classes]
        # only capacities that the step table can hold
        self._sizes = [b for b in BUCKETS if b < layout.rows] + [layout.rows]
        for d in self.devices.values():
            _check_names(d)
        for node in [*graph.nodes, *graph.advances]:
            self._place(node)
        self._join_states()
        self.buckets = {c: self._buckets(c) for c in self.classes}

    def expand(self, nodes: Iterable[Node], table: TableClass) -> list[Node]:
        """Return nodes as they run: layer ops that were placed whole, primitives of the others."""
        out = []
        for node in nodes:
            out += flatten(node, table) if node.name in self.expanded else [node]
        return out

    def refusal(self, place: Place, node: Node, table: TableClass, bucket: int) -> str:
        """Return "" if this place's kernel takes the node, else why not."""
        device = self.devices[place]
        kernel = device.kernels.get(node.op)
        if kernel is None:
            return f"{device.name} has no kernel for {node.op}"
        for variant in _with_tops(node):
            sig = self.signatures[place].of(variant, table, bucket, self.values)
            key = (place, sig)
            if key not in self._answers:
                self._answers[key] = _asked(device, kernel, sig)
            if self._answers[key]:
                return self._answers[key]
        return ""

    def _place(self, node: Node) -> None:
        variants = [(node, c) for c in self.essential]
        reason = self._refused(Place.DEVICE, variants)
        if not reason:
            self._native(variants)
        elif OPS[node.op].decompose is not None:
            self._expand(node)
        else:
            self._to_host(node, variants, reason)

    def _expand(self, node: Node) -> None:
        self.expanded.add(node.name)
        variants: dict[str, list[tuple[Node, TableClass]]] = {}
        for table in self.classes:
            for part in flatten(node, table):
                self.values.update((v.name, v) for v in outputs(part))
                if table in self.essential:
                    variants.setdefault(part.name, []).append((part, table))
        for parts in variants.values():
            reason = self._refused(Place.DEVICE, parts)
            if reason:
                self._to_host(parts[0][0], parts, reason)
            else:
                self._native(parts)

    def _to_host(self, node: Node, variants: list[tuple[Node, TableClass]], reason: str) -> None:
        refused = "no host device stands behind this one"
        if Place.HOST in self.devices:
            refused = self._refused(Place.HOST, variants)
            if not refused:
                self._record(
                    variants[0], Place.HOST, "host", self._kernel(Place.HOST, node), reason
                )
                return
        if self.allow_reference:
            place = Place.HOST if Place.HOST in self.devices else Place.DEVICE
            kernel = ReferenceKernel(OPS[node.op], self.devices[place])
            self._record(variants[0], place, "reference", kernel, reason)
            return
        raise Unsupported(
            what=f"{node.name} ({node.op}) was to be bound",
            evidence=f"the device: {reason}; the host: {refused}",
            fix="use another backend, or --backend cpu",
            code="CRT-3103",
        )

    def _refused(self, place: Place, variants: list[tuple[Node, TableClass]]) -> str:
        smallest = self._sizes[0]
        reasons = (self.refusal(place, n, table, smallest) for n, table in variants)
        return next((r for r in reasons if r), "")

    def _kernel(self, place: Place, node: Node) -> Kernel:
        return self.devices[place].kernels[node.op]

    def _native(self, variants: list[tuple[Node, TableClass]]) -> None:
        kernel = self._kernel(Place.DEVICE, variants[0][0])
        self._record(variants[0], Place.DEVICE, "native", kernel, "")

    def _record(
        self, variant: tuple[Node, TableClass], place: Place, how: str, kernel: Kernel, reason: str
    ) -> None:
        node, table = variant
        sig = self.signatures[place].of(node, table, self._sizes[0], self.values)
        with border(self.devices[place], DESCRIBE, f"say how it computes {node.op}"):
            numerics, row_invariant = kernel.numerics(sig), kernel.row_invariant(sig)
        if not isinstance(numerics, Numerics) or not isinstance(row_invariant, bool):
            raise PluginFailed(
                what=f"{source(self.devices[place])} was asked how it computes {node.op}",
                evidence=f"numerics is {numerics!r}, row_invariant is {row_invariant!r}",
                fix="let `numerics` return a clover_rt.spec.Numerics and `row_invariant` a bool",
                code="CRT-3415",
            )
        self.choices[node.name] = Choice(
            node.name,
            node.op,
            place,
            how,
            kernel,
            numerics,
            row_invariant,
            reason,
        )

    def _nodes(self) -> dict[str, list[tuple[Node, TableClass]]]:
        """Return the variants of every node that runs, by name."""
        found: dict[str, list[tuple[Node, TableClass]]] = {}
        for table in self.essential:
            for node in self.expand([*self.graph.nodes, *self.graph.advances], table):
                found.setdefault(node.name, []).append((node, table))
        return found

    def _join_states(self) -> None:
        """Move every group of nodes that share states to the host unless all are on the device.

        A layer op that would be moved whole is decomposed first, so that only what touches the
        states moves.
        """
        while True:
            nodes = self._nodes()
            moved = False
            for names, away in self._groups(nodes):
                for name in names if away else ():
                    variants = nodes[name]
                    node = variants[0][0]
                    if self.choices[name].place is Place.HOST:
                        continue
                    moved = True
                    if OPS[node.op].decompose is not None:
                        del self.choices[name]
                        self._expand(node)
                    else:
                        reason = f"shares its state with {away} on the host"
                        self._to_host(node, variants, reason)
            if not moved:
                return

    def _groups(
        self, nodes: Mapping[str, list[tuple[Node, TableClass]]]
    ) -> list[tuple[list[str], str]]:
        """Return (node names, name of one on the host or "") of each group sharing states."""
        owner: dict[str, str] = {}
        root: dict[str, str] = {}

        def find(name: str) -> str:
            while root[name] != name:
                name = root[name]
            return name

        for name, variants in nodes.items():
            states = {
                v
                for node, _ in variants
                for v in node.operands.values()
                if self.values[v].kind is ValueKind.STATE
            }
            if not states:
                continue
            root.setdefault(name, name)
            for s in states:
                root[find(name)] = find(owner.setdefault(s, name))
        groups: dict[str, list[str]] = {}
        for name in root:
            groups.setdefault(find(name), []).append(name)
        return [(names, self._away(names)) for names in groups.values()]

    def _away(self, names: list[str]) -> str:
        hosted = (n for n in names if self.choices[n].place is Place.HOST)
        return next(hosted, "")

    def _buckets(self, table: TableClass) -> list[int]:
        """Return the buckets of a class that every kernel takes; none: the class is refused."""
        distinct: dict[tuple[str, Signature], tuple[Choice, Node]] = {}
        for node in self.expand([*self.graph.nodes, *self.graph.advances], table):
            choice = self.choices.get(node.name)
            if choice is None:
                return []
            if choice.how != "reference":
                sig = self.signatures[choice.place].of(node, table, 1, self.values)
                distinct[(choice.place.value, sig)] = (choice, node)
        return [
            size
            for size in self._sizes
            if not any(self.refusal(c.place, n, table, size) for c, n in distinct.values())
        ]


def _asked(device: Device, kernel: Kernel, sig: Signature) -> str:
    """Return a kernel's answer to a signature: "" or a sentence.

    Raises PluginFailed: CRT-3401 it raised, CRT-3407 it answered with no string.
    """
    with border(device, SUPPORTS, f"say whether it supports {sig.op}"):
        answer = kernel.supports(sig)
    if not isinstance(answer, str):
        raise PluginFailed(
            what=f"{source(device)} was asked whether it supports {sig.op}",
            evidence=f"it answered {answer!r}, not a string",
            fix='let `supports` return "" for yes, or a sentence that says why not',
            code=ANSWER,
        )
    return answer


def _check_names(device: Device) -> None:
    """Raise PluginFailed (CRT-3408) for a kernel of an op that there is not: it would never run."""
    strange = [name for name in device.kernels if name not in OPS]
    if strange:
        near = difflib.get_close_matches(strange[0], OPS, n=1)
        raise PluginFailed(
            what=f"{source(device)} has a kernel for {strange[0]!r}",
            evidence="there is no such operation",
            fix=f"{f'did you mean {near[0]!r}? ' if near else ''}`clover-rt ops` lists all",
            code=NAMES,
        )


def with_top(node: Node, top: int) -> Node:
    """Return a node that returns `top` candidates, where it returns candidates at all."""
    if "top" not in node.axes:
        return node
    attrs = {**node.attrs, "top": top} if "top" in node.attrs else node.attrs
    return replace(node, axes={**node.axes, "top": top}, attrs=attrs)


def _with_tops(node: Node) -> list[Node]:
    if "top" not in node.axes:
        return [node]
    return [with_top(node, min(top, node.axes["vocab"])) for top in TOPS]
