"""Golden checkpoints bound to devices, and passes run step by step so that every value shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clover_rt.backend import Device
from clover_rt.ops import OPS
from clover_rt.plan import Plan
from clover_rt.plan.program import Action
from clover_rt.plugins import open_device
from clover_rt.spec import (
    Kind,
    Pass,
    Picks,
    Role,
    Segment,
    StepParams,
    Wanted,
    evaluate_dim,
)
from clover_rt_conformance.models.binding import CONTEXT, SLOTS, one_segment
from tests.end_to_end.plans import plan_of
from tests.golden import checkpoint
from tests.toy import PRIMITIVES, ToyDevice

TOP = 64


def toy() -> Device:
    """Return a device whose kernels are the references of the primitives."""
    return ToyDevice("toy", PRIMITIVES)


def cpu() -> Device:
    """Return the cpu backend's device with all of its kernels."""
    return open_device("cpu")[1]


def without_layer_ops(device: Device) -> Device:
    """Take a device's layer ops away, so that what lies inside them shows; return the device."""
    device.kernels = {op: k for op, k in device.kernels.items() if op in PRIMITIVES}
    return device


DEVICES: dict[str, Callable[[], Device]] = {"toy": toy, "cpu": cpu}


def open_plan(name: str, device: Device) -> Plan:
    """Return a plan of a golden checkpoint on a device alone, in `exact`."""
    return plan_of(checkpoint(name), device, SLOTS, CONTEXT)


def side_by_side(parts: Sequence[Pass]) -> Pass:
    """Return one pass of the segments of several, with every row wanted."""
    segments: list[Segment] = []
    tokens: list[int] = []
    for part in parts:
        segments += [replace(s, row0=s.row0 + len(tokens)) for s in part.segments]
        tokens += part.tokens
    wanted = tuple(Wanted(row, 1) for row in range(len(tokens)))
    return Pass(tuple(segments), tuple(tokens), wanted=wanted)


def commit_prompt(plan: Plan, slot: int, ids: Sequence[int]) -> dict[str, Any]:
    """Commit a prompt to a slot that starts anew; return every value of the pass."""
    plan.reset_slot(slot)
    return trace(plan, one_segment(Kind.COMMIT, slot, ids, 0))


def trace(plan: Plan, work: Pass) -> dict[str, Any]:
    """Run a pass one action after the other; return the live rows of every value by name.

    Advances are not run. A value that is written in two steps is the one after the second.
    """
    assert not work.advances, "a traced pass has no advances"
    params = StepParams(plan.layout)
    params.write(work)
    for place, device in plan.devices.items():
        at = plan.resident("params", place)
        device.upload(at.buffer, at.offset, params.buffer)
    values: dict[str, Any] = {}
    for action in plan.program(work.table, len(work.tokens), TOP).actions:
        action.step()
        if action.node is not None:
            values |= _results(plan, action, work)
    return values


def _results(plan: Plan, action: Action, work: Pass) -> dict[str, Any]:
    node, sig = action.node, action.sig
    assert node is not None and sig is not None
    lengths = {"T": len(work.tokens), "W": len(work.wanted), "segments": len(work.segments)}
    written = [
        o
        for o in OPS[node.op].operands
        if o.role in (Role.OUTPUT, Role.INOUT) and o.name in node.operands
    ]
    out = {}
    for operand, at in zip(written, action.results, strict=True):
        array = np.empty(at.shape, at.dtype)
        plan.devices[action.place].download(at.buffer, at.offset, array)
        live = evaluate_dim(operand.shape[0], dict(sig.axes) | lengths)
        out[node.operands[operand.name]] = array[:live]
    return out


def all_logits(plan: Plan, work: Pass) -> Any:
    """Return every logit of the wanted rows of the pass that was traced last, [wanted, vocab].

    A pass returns 64 candidates: so the last step runs again and again, each time with all but 64
    ids suppressed. Its operands outlive it, since nothing follows it.
    """
    program = plan.program(work.table, len(work.tokens), TOP)
    last = program.actions[-1]
    assert last.node is not None and "picks" in last.node.operands
    vocab = plan.vocab_size
    out = np.full((len(work.wanted), vocab), np.nan)
    for start in range(0, vocab, TOP):
        hidden = np.ones(vocab, bool)
        hidden[start : start + TOP] = False
        _suppress(plan, work, hidden)
        last.step()
        picks = _picks(plan, work)
        count = min(TOP, vocab - start)
        assert picks.finite
        rows = np.arange(len(work.wanted))[:, None]
        out[rows, picks.ids[:, :count]] = picks.logits[:, :count]
    _suppress(plan, work, np.zeros(vocab, bool))
    assert not np.isnan(out).any(), "some id never was a candidate"
    return out


def _suppress(plan: Plan, work: Pass, hidden: Any) -> None:
    for segment in work.segments:
        plan.load_request(segment.slot, np.zeros(plan.vocab_size, np.int32), hidden)


def _picks(plan: Plan, work: Pass) -> Picks:
    program = plan.program(work.table, len(work.tokens), TOP)
    assert program.picks is not None
    words = np.empty(program.picks.shape, np.int32)
    device = plan.devices[program.picks_place]
    device.download(program.picks.buffer, program.picks.offset, words)
    return Picks.decode(words, len(work.wanted), TOP)


def hidden_rows(plan: Plan, values: dict[str, Any]) -> Any:
    """Return the residual stream before the first layer and after each, [layers + 1, T, D]."""
    layers = [n.name for n in plan.graph.nodes if n.op == "moe"]
    return np.stack([values[name] for name in ("embed", *layers)])


def state_bytes(plan: Plan) -> dict[str, bytes]:
    """Return every state of the plan as bytes."""
    return {name: plan.state(name).tobytes() for name in sorted(plan.state_places)}
