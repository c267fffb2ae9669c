"""Plan: runs passes on a device and keeps the state of its slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Device, Prepared, Tensor, Usage
from clover_rt.errors import Unsupported
from clover_rt.graph import Graph, ValueKind
from clover_rt.ops import OPS
from clover_rt.ops.controls import pack_mask
from clover_rt.plan.border import MEMORY, PREPARE, border, raise_step
from clover_rt.plan.memory import Pool, allocate, nbytes_of, tensor
from clover_rt.plan.placement import TOPS, Choice, Place, Placement
from clover_rt.plan.program import Action, Program, bind_program
from clover_rt.plan.report import Profile
from clover_rt.spec import (
    Node,
    Pass,
    Picks,
    Precision,
    Role,
    Signature,
    StepLayout,
    StepParams,
    TableClass,
)

Array = npt.NDArray[Any]
Progress = Callable[[int, int, str], None]


def bind(
    graph: Graph,
    device: Device,
    host: Device | None,
    *,
    layout: StepLayout,
    context: int,
    precision: Precision = Precision.EXACT,
    strict: bool = False,
    allow_reference: bool = False,
    on_progress: Progress | None = None,
) -> Plan:
    """Return a plan of the graph on a device, with the cpu device `host` behind it.

    strict raises Unsupported if any step of a layer would run on the host. on_progress is told
    (done, total, node name) as weights are prepared.
    """
    plan = Plan(graph, device, host, layout, context, precision, allow_reference)
    hosted = [c for c in plan.choices if c.place is Place.HOST and c.node.startswith("layers.")]
    if strict and hosted:
        reasons = sorted({f"{c.op}: {c.reason}" for c in hosted})
        raise Unsupported(
            what=f"{len(hosted)} steps of the layers would run on the host under --strict",
            evidence="; ".join(reasons),
            fix="drop --strict, or use a backend that has these operations",
            code="CRT-3101",
        )
    plan.prepare_all(on_progress)
    return plan


class Plan:
    """A graph bound to a device; made by `bind`.

    slots, pages, context, widest_draft, vocab_size, max_rows: what the engine plans with
    profile: set to a Profile to have passes run and timed step by step
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        host: Device | None,
        layout: StepLayout,
        context: int,
        precision: Precision,
        allow_reference: bool,
    ) -> None:
        self.graph = graph
        self.layout = layout
        self.context = context
        self.precision = precision
        preview = any(n.op == "gdn" and "right" in n.operands for n in graph.nodes)
        self.placement = Placement(
            graph, device, host, precision, layout, context, preview, allow_reference
        )
        self.devices = self.placement.devices
        self.pools = {place: Pool(d) for place, d in self.devices.items()}
        self.profile: Profile | None = None
        self._prepared: dict[str, Prepared] = {}
        self._residents: dict[tuple[str, Place], Tensor] = {}
        self._programs: dict[tuple[TableClass, int, int], Program] = {}
        self._advance: Program | None = None
        self._staging = StepParams(layout)
        begin = graph.nodes[0].axes
        self.slots = begin["slots"]
        self.vocab_size = begin["vocab"]
        self.pages = next((n.axes["pages"] for n in graph.nodes if n.op == "attention"), 0)
        self.widest_draft = next((n.axes["Q"] for n in graph.advances), 0)
        self.state_places = self._state_places()
        for name in self.state_places:
            self.resident(name, self.state_places[name])

    @property
    def choices(self) -> list[Choice]:
        return list(self.placement.choices.values())

    @property
    def row_invariant(self) -> bool:
        """Does a row get the same bits however rows are split over passes?"""
        return all(c.row_invariant for c in self.choices)

    @property
    def max_rows(self) -> int:
        """Rows of the largest pass of every class that this plan accepts."""
        sizes = [b[-1] for b in self.placement.buckets.values() if b]
        return min(sizes)

    def accepts(self, table: TableClass) -> bool:
        return bool(self.placement.buckets.get(table))

    def run(self, work: Pass, top: int = 1) -> Picks:
        """Run one pass: one upload, its steps, one download of the picks.

        Raises CRT-3102 for a class or row count that the device does not take.
        """
        self._upload(work)
        if work.advances:
            self._run(self._advance_program())
        program = self.program(work.table, len(work.tokens), top)
        self._run(program)
        return self._download(program, len(work.wanted), self._top(top))

    def program(self, table: TableClass, rows: int, top: int = 1) -> Program:
        """Return the bound steps for a table class and row count, made at first use."""
        buckets = self.placement.buckets.get(table, [])
        bucket = next((b for b in buckets if b >= rows), None)
        if bucket is None:
            raise Unsupported(
                what=f"a {table.value} pass of {rows} rows was asked for",
                evidence=f"{self.devices[Place.DEVICE].name} takes up to "
                f"{buckets[-1] if buckets else 0} rows of this class",
                fix="make passes of fewer rows",
                code="CRT-3102",
            )
        key = (table, bucket, self._top(top))
        if key not in self._programs:
            self._programs[key] = bind_program(self, self.graph.nodes, *key)
        return self._programs[key]

    def prepare_all(self, on_progress: Progress | None = None) -> None:
        """Prepare every node's weights now, so that the first pass does not wait for it."""
        for device in self.devices.values():
            device.on_progress = on_progress
        nodes = self.placement.expand(self.graph.nodes, self._widest_class())
        for i, node in enumerate(nodes):
            choice = self.placement.choices[node.name]
            signatures = self.placement.signatures[choice.place]
            sig = signatures.of(node, self._widest_class(), 1, self.placement.values)
            self.prepared(node, choice, sig)
            if on_progress is not None:
                on_progress(i + 1, len(nodes), node.name)

    def _widest_class(self) -> TableClass:
        wide = (TableClass.PREVIEW, TableClass.COMMIT)
        return next(c for c in wide if c in self.placement.classes)

    def prepared(self, node: Node, choice: Choice, sig: Signature) -> Prepared:
        """Return what the node's kernel made of its weights: once, for every class and bucket."""
        if node.name not in self._prepared:
            weights = {}
            for operand, _, _ in sig.formats:
                weight = self.placement.values[node.operands[operand]].weight
                assert weight is not None
                weights[operand] = weight
            with border(self.devices[choice.place], PREPARE, f"prepare {node.op} ({node.name})"):
                self._prepared[node.name] = choice.kernel.prepare(sig.static(), weights)
        return self._prepared[node.name]

    def resident(self, name: str, place: Place) -> Tensor:
        """Return the tensor of a state, a constant or the step table on a place."""
        key = (name, place)
        if key not in self._residents:
            value, device = self.graph.values[name], self.devices[place]
            if value.kind is ValueKind.PARAMS:
                buffer = allocate(device, self.layout.nbytes, Usage.PARAMS, "the step table")
                self._residents[key] = tensor(buffer, "uint8", (self.layout.nbytes,))
                return self._residents[key]
            dtype = self.placement.signatures[place].dtype(value.dtype)
            size = nbytes_of(dtype, value.shape)
            buffer = allocate(device, size, Usage.STATE, name)
            self._residents[key] = tensor(buffer, dtype, value.shape)
            if value.data is not None:
                with border(device, MEMORY, f"take {name}"):
                    device.upload(buffer, 0, np.ascontiguousarray(value.data))
        return self._residents[key]

    def state(self, name: str) -> Array:
        """Return a copy of a state by value name, such as `layers.0.S`; for tests and debugging."""
        place = self.state_places[name]
        at = self.resident(name, place)
        out = np.empty(at.shape, at.dtype)
        self.devices[place].download(at.buffer, at.offset, out)
        return out

    def reset_slot(self, slot: int) -> None:
        """Set ring, memory and counts of a slot to zero."""
        for name in self._slot_states():
            zero = np.zeros(*self._slot_shape(name))
            self._write_slot(name, slot, zero)

    def copy_slot(self, src: int, dst: int) -> None:
        """Copy ring, memory and counts of a slot; KV pages, page table and mask stay."""
        for name in self._slot_states():
            at = self.resident(name, self.state_places[name])
            stride = at.nbytes // self.slots
            device = self.devices[self.state_places[name]]
            with border(device, MEMORY, f"copy {name} of slot {src} to slot {dst}"):
                device.copy(at.buffer, dst * stride, at.buffer, src * stride, stride)

    def load_request(self, slot: int, counts: Array, suppressed: Array) -> None:
        """Load counts int32 [vocab] and the suppressed ids bool [vocab] of a request."""
        self.load_counts(slot, counts)
        self._write_slot("suppressed", slot, pack_mask(suppressed))

    def load_counts(self, slot: int, counts: Array) -> None:
        self._write_slot("counts", slot, counts.astype(np.int32))

    def explain_nonfinite(self, work: Pass, top: int = 1) -> str:
        """Run a pass step by step until a result is not finite; name layer and op, or "".

        Deltas are not applied again. Advances are left out: a tape serves once.
        """
        self._upload(work)
        self._staging.drop_deltas()
        self._upload_staging()
        for action in self.program(work.table, len(work.tokens), top).actions:
            bad = self._first_nonfinite(action)
            if bad:
                return bad
        return ""

    def follow(
        self,
        work: Pass,
        given: Mapping[str, Array],
        on_step: Callable[[str], None] | None = None,
    ) -> dict[str, Array]:
        """Run a pass step by step; return the rows after each layer op, float32, by node name.

        given    rows that the step after an op goes on with instead of that op's own, by node name
        on_step  told the name of each step's node before it runs
        """
        self._upload(work)
        streams = {n.name for n in self.graph.nodes if n.name != "pick"}
        found: dict[str, Array] = {}
        for action in self.program(work.table, len(work.tokens)).actions:
            if on_step is not None:
                on_step(action.node.name if action.node is not None else action.moved)
            try:
                action.step()
            except (Exception, SystemExit) as error:
                raise_step(list(self.devices.values()), [action], error)
            if action.node is None:
                continue
            device = self.devices[action.place]
            for name, at in zip(_written(action.node), action.results, strict=True):
                if name not in streams:
                    continue
                whole = np.empty(at.shape, at.dtype)
                device.download(at.buffer, at.offset, whole)
                found[name] = whole[: len(work.tokens)].astype(np.float32)
                if name in given:
                    device.upload(at.buffer, at.offset, given[name].astype(at.dtype))
        return found

    def close(self) -> None:
        """Free the devices' memory."""
        for device in self.devices.values():
            device.close()

    def _first_nonfinite(self, action: Action) -> str:
        device = self.devices[action.place]
        floats = [t for t in action.results if t.dtype.kind not in "iub"]
        # rows that a step leaves alone must not show what an earlier value left there
        created = floats if action.node is not None and action.node.op != "block_memory" else []
        for t in created:
            device.upload(t.buffer, t.offset, np.zeros(t.shape, t.dtype))
        try:
            action.step()
        except (Exception, SystemExit) as error:
            raise_step(list(self.devices.values()), [action], error)
        for t in floats:
            out = np.empty(t.shape, t.dtype)
            device.download(t.buffer, t.offset, out)
            rows = np.flatnonzero(~np.isfinite(out.astype(np.float32)).all(axis=-1))
            if len(rows) and action.node is not None:
                node = action.node
                per_row = max(1, len(out) // node.axes["T"])
                return f"layer {node.layer}, op {node.op} ({node.name}), row {rows[0] // per_row}"
        if action.node is not None and "picks" in action.node.operands:
            return self._nonfinite_logits(action, action.node)
        return ""

    def _nonfinite_logits(self, action: Action, node: Node) -> str:
        """Name the head where its flag alone tells: the rows before it were finite."""
        (picks,) = action.results
        flag = np.empty(1, np.int32)
        self.devices[action.place].download(picks.buffer, picks.offset, flag)
        if flag[0]:
            return ""
        return f"layer {node.layer}, op {node.op} ({node.name}), the logits of a wanted row"

    def _run(self, program: Program) -> None:
        if self.profile is not None:
            self.profile.run(program, self)
            return
        done = 0
        try:
            for step in program.run:
                step()
                done += 1
        # SystemExit too: a plugin must not end the program
        except (Exception, SystemExit) as error:
            raise_step(list(self.devices.values()), program.covered[done], error)

    def _advance_program(self) -> Program:
        if self._advance is None:
            self._advance = bind_program(self, self.graph.advances, TableClass.COMMIT, 1, 1)
        return self._advance

    def _top(self, top: int) -> int:
        return min(next(t for t in TOPS if t >= top), self.vocab_size)

    def _upload(self, work: Pass) -> None:
        self._staging.write(work)
        self._upload_staging()

    def _upload_staging(self) -> None:
        for place, device in self.devices.items():
            at = self.resident("params", place)
            with border(device, MEMORY, "take the table of a pass"):
                device.upload(at.buffer, at.offset, self._staging.buffer)

    def _download(self, program: Program, wanted: int, top: int) -> Picks:
        assert program.picks is not None
        rows = np.empty((1 + wanted, program.picks.shape[1]), np.int32)
        device = self.devices[program.picks_place]
        # where steps are only submitted, this waits for them: their errors come up here
        with border(device, MEMORY, "finish a pass and return its picks"):
            device.download(program.picks.buffer, 0, rows)
        return Picks.decode(rows, wanted, top)

    def _state_places(self) -> dict[str, Place]:
        """Return the place of each state: that of the nodes that touch it."""
        out: dict[str, Place] = {}
        for table in self.placement.essential:
            nodes = [*self.graph.nodes, *self.graph.advances]
            for node in self.placement.expand(nodes, table):
                for name in node.operands.values():
                    if self.placement.values[name].kind is ValueKind.STATE:
                        out[name] = self.placement.choices[node.name].place
        return out

    def _slot_states(self) -> list[str]:
        kept = ("ring", "S", "counts")
        return [n for n in self.state_places if n.rsplit(".", 1)[-1] in kept]

    def _slot_shape(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        at = self.resident(name, self.state_places[name])
        return at.shape[1:], at.dtype

    def _write_slot(self, name: str, slot: int, array: Array) -> None:
        place = self.state_places[name]
        at = self.resident(name, place)
        stride = at.nbytes // self.slots
        with border(self.devices[place], MEMORY, f"take {name} of slot {slot}"):
            self.devices[place].upload(at.buffer, slot * stride, np.ascontiguousarray(array))


def _written(node: Node) -> list[str]:
    """Return the edges that a node writes, in the order of an action's results."""
    return [
        node.operands[o.name]
        for o in OPS[node.op].operands
        if o.role in (Role.OUTPUT, Role.INOUT) and o.name in node.operands
    ]
