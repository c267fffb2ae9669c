"""Program: the bound steps of one key (table class, row bucket, candidates).

Nodes run in graph order. A value that is needed on another place than where it was written is
moved once; edge buffers are assigned by liveness; runs of steps on the device are captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from clover_rt.backend import Buffer, Step, Tensor
from clover_rt.graph import Value, ValueKind, outputs
from clover_rt.ops import OPS
from clover_rt.plan.border import BIND, CAPTURE, border, check_operands, check_step
from clover_rt.plan.memory import nbytes_of, tensor
from clover_rt.plan.placement import Place, with_top
from clover_rt.spec import Node, Role, Signature, TableClass

if TYPE_CHECKING:
    from clover_rt.plan.plan import Plan


@dataclass(frozen=True)
class Action:
    """One thing that a pass does: a node's step, or a move of a value between places."""

    step: Step
    place: Place
    node: Node | None = None
    sig: Signature | None = None
    results: tuple[Tensor, ...] = ()
    moved: str = ""


@dataclass(frozen=True)
class Program:
    """A bound pass: `run` does it in as few submissions as there are; `actions` one by one.

    covered  the actions of each submission
    """

    actions: tuple[Action, ...]
    run: tuple[Step, ...]
    covered: tuple[tuple[Action, ...], ...]
    picks: Tensor | None
    picks_place: Place

    @property
    def launches(self) -> int:
        return len(self.actions)


def bind_program(
    plan: Plan, nodes: Sequence[Node], table: TableClass, bucket: int, top: int
) -> Program:
    """Bind nodes, given as layer ops, at a capacity."""
    return _Binder(plan, table, bucket, top).bind(nodes)


class _Binder:
    def __init__(self, plan: Plan, table: TableClass, bucket: int, top: int) -> None:
        self.plan = plan
        self.table = table
        self.bucket = bucket
        self.top = top
        self.dynamic = {"T": bucket, "W": min(bucket, plan.layout.wanted)}
        self.values: dict[str, Value] = dict(plan.graph.values)
        self.homes: dict[str, set[Place]] = {}
        self.tensors: dict[tuple[str, Place], Tensor] = {}
        self.buffers: dict[tuple[str, Place], Buffer] = {}
        self.actions: list[Action] = []

    def bind(self, nodes: Sequence[Node]) -> Program:
        chosen = [with_top(n, self.top) for n in nodes]
        flat = [self._at_capacity(n) for n in self.plan.placement.expand(chosen, self.table)]
        for node in flat:
            self.values.update((v.name, v) for v in outputs(node))
        last = self._last_uses(flat)
        for pool in self.plan.pools.values():
            pool.reset()
        for i, node in enumerate(flat):
            self._node(node)
            for name in {v for v in node.operands.values() if last.get(v) == i}:
                self._give_back(name)
        picks = next((n.operands["picks"] for n in flat if "picks" in n.operands), None)
        place = Place.DEVICE
        if picks is not None:
            place = next(iter(self.homes[picks]))
        submissions = self._captured()
        return Program(
            tuple(self.actions),
            tuple(step for step, _ in submissions),
            tuple(tuple(actions) for _, actions in submissions),
            None if picks is None else self.tensors[picks, place],
            place,
        )

    def _at_capacity(self, node: Node) -> Node:
        return replace(node, axes={**node.axes, **self.dynamic})

    def _last_uses(self, nodes: Sequence[Node]) -> dict[str, int]:
        """Return the index of the last node that uses each edge; the picks live on."""
        last = {}
        for i, node in enumerate(nodes):
            for operand, name in node.operands.items():
                if self.values[name].kind is ValueKind.EDGE and operand != "picks":
                    last[name] = i
        return last

    def _node(self, node: Node) -> None:
        plan, spec = self.plan, OPS[node.op]
        choice = plan.placement.choices[node.name]
        place = choice.place
        operands: dict[str, Tensor] = {}
        results = []
        for o in spec.operands:
            name = node.operands.get(o.name)
            if name is None or o.role is Role.WEIGHT:
                continue
            if o.role is Role.OUTPUT:
                operands[o.name] = self._create(name, place)
                results.append(operands[o.name])
            else:
                operands[o.name] = self._at(name, place)
            if o.role in (Role.OUTPUT, Role.INOUT):
                self.homes[name] = {place}
            if o.role is Role.INOUT:
                results.append(operands[o.name])
        sig = plan.placement.signatures[place].of(node, self.table, self.bucket, self.values)
        prepared = plan.prepared(node, choice, sig)
        device = plan.devices[place]
        check_operands(spec, operands, device)
        doing = f"bind {node.op} ({node.name})"
        with border(device, BIND, doing):
            nbytes = choice.kernel.scratch(sig)
        scratch = plan.pools[place].scratch_of(nbytes, node.name)
        with border(device, BIND, doing):
            step = choice.kernel.bind(sig, operands, prepared, scratch)
        check_step(device, step, doing)
        self.actions.append(Action(step, place, node, sig, tuple(results)))

    def _create(self, name: str, place: Place) -> Tensor:
        value = self.values[name]
        dtype = self.plan.placement.signatures[place].dtype(value.dtype)
        buffer = self.plan.pools[place].take(nbytes_of(dtype, value.shape), name)
        self.buffers[name, place] = buffer
        self.tensors[name, place] = tensor(buffer, dtype, value.shape)
        return self.tensors[name, place]

    def _at(self, name: str, place: Place) -> Tensor:
        """Return a value on a place, moving it there if it is only elsewhere."""
        kind = self.values[name].kind
        if kind is not ValueKind.EDGE:
            return self.plan.resident(name, place)
        homes = self.homes[name]
        if place not in homes:
            source = next(iter(homes))
            if (name, place) not in self.tensors:
                self._create(name, place)
            target = self.tensors[name, place]
            move = self._move(self.tensors[name, source], source, target, place)
            self.actions.append(Action(move, Place.HOST, moved=name))
            homes.add(place)
        return self.tensors[name, place]

    def _move(self, src: Tensor, source: Place, dst: Tensor, target: Place) -> Step:
        """Return a step that copies a value through host memory, changing its type if need be."""
        read, write = self.plan.devices[source], self.plan.devices[target]
        staging = np.empty(src.shape, src.dtype)

        def move() -> None:
            read.download(src.buffer, src.offset, staging)
            write.upload(dst.buffer, dst.offset, staging.astype(dst.dtype, copy=False))

        return move

    def _give_back(self, name: str) -> None:
        for place in Place:
            buffer = self.buffers.pop((name, place), None)
            if buffer is not None:
                self.plan.pools[place].give(buffer)

    def _captured(self) -> list[tuple[Step, list[Action]]]:
        """Return the pass as steps: each run of steps on the device becomes one submission."""
        device = self.plan.devices[Place.DEVICE]
        out: list[tuple[Step, list[Action]]] = []
        run: list[Action] = []

        def close() -> None:
            if run:
                doing = f"capture {len(run)} steps"
                with border(device, CAPTURE, doing):
                    layers = [[a.step for a in same] for _, same in groupby(run, _layer)]
                    step = device.capture_layers(layers)
                check_step(device, step, doing)
                out.append((step, list(run)))
                run.clear()

        for action in self.actions:
            if action.place is Place.DEVICE:
                run.append(action)
            else:
                close()
                out.append((action.step, [action]))
        close()
        return out


def _layer(action: Action) -> str:
    """Return the name of the layer that a step belongs to, such as `layers.3`."""
    assert action.node is not None, "moves are steps of the host"
    name = action.node.layer
    return name.rpartition(".")[0] or name
