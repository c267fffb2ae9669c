"""Golden checkpoints bound to a device, and passes over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Device
from clover_rt.errors import Unsupported
from clover_rt.graph import Graph
from clover_rt.model.build import Capacity, build_graph
from clover_rt.ops.kv_append import pool_rows
from clover_rt.plan import Place, Plan, bind
from clover_rt.spec import PAGE_ROWS, Kind, Pass, Precision, Segment, StepLayout, Wanted
from clover_rt.weights import load_weights
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.bound import Declined
from clover_rt_conformance.models.golden import checkpoint

SLOTS, CONTEXT, DRAFT, TOP = 4, 512, 32, 64
PAGES = CONTEXT // PAGE_ROWS
LAYOUT = StepLayout()
Array = npt.NDArray[Any]


def golden_graph(name: str) -> Graph:
    """Return the graph of a golden checkpoint with room for SLOTS sequences."""
    opened = checkpoint(name)
    capacity = Capacity(SLOTS, CONTEXT, SLOTS * PAGES, DRAFT, LAYOUT)
    return build_graph(opened.config, load_weights(opened), capacity)


def plan_on(name: str, device: Device, precision: Precision, host: Device | None = None) -> Plan:
    """Bind a golden checkpoint; raises Declined where an op runs neither here nor on the host."""
    try:
        return bind(
            golden_graph(name), device, host, layout=LAYOUT, context=CONTEXT, precision=precision
        )
    except Unsupported as refusal:
        raise Declined(refusal.what, refusal.evidence, refusal.fix) from refusal


def plan_of(bench: Bench, name: str, precision: Precision) -> Plan:
    """Return the bench's plan of a golden checkpoint, with all of it on the device."""
    key = ("plan", name, precision)
    plan: Plan = bench.keep(key, lambda: plan_on(name, bench.open(), precision))
    return plan


def how(plan: Plan) -> str:
    """Return "native" where no layer op was decomposed, else "composed"."""
    hosted = any(c.place is Place.HOST for c in plan.choices)
    return "composed" if hosted or plan.placement.expanded else "native"


def one_segment(
    kind: Kind,
    slot: int,
    ids: Sequence[int],
    position: int,
    advances: tuple[tuple[int, int], ...] = (),
) -> Pass:
    """Return a pass of one segment with every row wanted.

    The pages of a slot are given with its first rows, and lie backwards, so that no page stands
    where its number says.
    """
    last = SLOTS * PAGES - 1
    deltas = tuple((slot, i, last - slot * PAGES - i) for i in range(PAGES))
    return Pass(
        (Segment(kind, slot, 0, len(ids), position),),
        tuple(ids),
        wanted=tuple(Wanted(row, 1) for row in range(len(ids))),
        page_deltas=deltas if position == 0 else (),
        advances=advances,
    )


def start(plan: Plan, slot: int, hidden: Array | None = None) -> None:
    """Make a slot new, with some ids suppressed."""
    plan.reset_slot(slot)
    none = np.zeros(plan.vocab_size, np.bool_)
    plan.load_request(slot, np.zeros(plan.vocab_size, np.int32), none if hidden is None else hidden)


def commit(plan: Plan, slot: int, ids: Sequence[int]) -> None:
    """Commit a prompt to a slot that starts anew."""
    start(plan, slot)
    plan.run(one_segment(Kind.COMMIT, slot, ids, 0))


def all_logits(plan: Plan, work: Pass) -> Array:
    """Return every logit of a one-segment pass, [wanted, vocab]; a commit starts its slot anew.

    A pass returns 64 candidates, so it is run again and again, each time with all but 64 ids
    suppressed. Raises AssertionError where a candidate is not one of the 64.
    """
    (segment,) = work.segments
    vocab = plan.vocab_size
    out = np.full((len(work.wanted), vocab), np.nan)
    for first in range(0, vocab, TOP):
        hidden = np.ones(vocab, np.bool_)
        hidden[first : first + TOP] = False
        if segment.kind is Kind.COMMIT:
            start(plan, segment.slot, hidden)
        else:
            plan.load_request(segment.slot, np.zeros(vocab, np.int32), hidden)
        picks = plan.run(work, TOP)
        count = min(TOP, vocab - first)
        rows = np.arange(len(work.wanted))[:, None]
        out[rows, picks.ids[:, :count]] = picks.logits[:, :count]
    none = np.zeros(vocab, np.bool_)
    plan.load_request(segment.slot, np.zeros(vocab, np.int32), none)
    return out


def slot_state(plan: Plan, slot: int, length: int) -> dict[str, Array]:
    """Return `layer.conv`, `layer.S`, `layer.k` and `layer.v` of a slot, as in the golden data."""
    out: dict[str, Array] = {}
    for node in plan.graph.nodes:
        if node.op not in ("gdn", "attention"):
            continue
        layer = node.name.split(".")[1]
        if node.op == "gdn":
            for part, operand in (("conv", "ring"), ("S", "S")):
                out[f"{layer}.{part}"] = plan.state(node.operands[operand])[slot]
            continue
        places = pool_rows(plan.state("page_table"), slot, 0, length)
        heads = (length, node.axes["G"], node.axes["K"])
        for part in ("k", "v"):
            pool = plan.state(node.operands[f"{part}_pool"])
            out[f"{layer}.{part}"] = pool[places].reshape(heads)
    return out


def all_states(plan: Plan) -> dict[str, bytes]:
    """Return every state of a plan as bytes."""
    return {name: plan.state(name).tobytes() for name in sorted(plan.state_places)}
