"""Plans over checkpoint folders: on the reference kernels and on the cpu backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clover_rt.backend import Device
from clover_rt.model.build import Capacity, build_graph
from clover_rt.ops.kv_append import pool_rows
from clover_rt.plan import Plan, bind
from clover_rt.plugins import open_device
from clover_rt.spec import PAGE_ROWS, Precision, StepLayout
from clover_rt.weights import Checkpoint, load_weights
from tests.golden import checkpoint
from tests.toy import PRIMITIVES, ToyDevice

CONTEXT = 1024


def plan_of(
    folder: Path,
    device: Device,
    slots: int,
    context: int = CONTEXT,
    precision: Precision = Precision.EXACT,
) -> Plan:
    """Bind a checkpoint to a device, with KV pages for every slot."""
    opened = Checkpoint.open(folder)
    layout = StepLayout()
    block = opened.config.block
    draft = block.block_size if block is not None else 1
    capacity = Capacity(slots, context, slots * -(-context // PAGE_ROWS), draft, layout)
    graph = build_graph(opened.config, load_weights(opened), capacity)
    return bind(graph, device, None, layout=layout, context=context, precision=precision)


def reference_plan(name: str, slots: int, context: int = CONTEXT) -> Plan:
    """Return a golden checkpoint on a device whose kernels are the ops' references."""
    return plan_of(checkpoint(name), ToyDevice("reference", PRIMITIVES), slots, context)


def cpu_plan(name: str, slots: int, context: int = CONTEXT) -> Plan:
    """Return a golden checkpoint on the cpu backend, through the public door."""
    return plan_of(checkpoint(name), open_device("cpu")[1], slots, context)


def plan_state(plan: Plan, slot: int, length: int) -> dict[int, dict[str, Any]]:
    """Return layer -> {"conv", "S"} or {"k", "v"} of a slot after `length` committed tokens."""
    out: dict[int, dict[str, Any]] = {}
    places = pool_rows(plan.state("page_table"), slot, 0, length)
    for node in plan.graph.nodes:
        if node.op == "gdn":
            ring, memory = (plan.state(node.operands[n])[slot] for n in ("ring", "S"))
            out[layer_of(node.name)] = {"conv": ring, "S": memory}
        elif node.op == "attention":
            rows = (length, node.axes["G"], node.axes["K"])
            k, v = (plan.state(node.operands[n])[places] for n in ("k_pool", "v_pool"))
            out[layer_of(node.name)] = {"k": k.reshape(rows), "v": v.reshape(rows)}
    return out


def layer_of(name: str) -> int:
    return int(name.split(".")[1])
