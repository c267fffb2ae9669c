"""Bytes that a plan takes on each device, counted by binding the plan itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clover_rt.backend import Device, Usage
from clover_rt.fit.counting import CountingDevice
from clover_rt.model.build import Capacity, build_graph
from clover_rt.model.config import ModelConfig
from clover_rt.plan import Place, Plan, bind
from clover_rt.plan.placement import TOPS
from clover_rt.plan.program import bind_program
from clover_rt.spec import PAGE_ROWS, HostWeight, Precision, StepLayout, TableClass

KV = ("k_pool", "v_pool")
TABLES = ("page_table", "counts", "suppressed")


@dataclass(frozen=True)
class Setting:
    """What a plan is made for.

    slots         sequences and snapshots; one is kept back where there are several
    prefill_rows  rows of the largest prompt chunk
    """

    precision: Precision = Precision.EXACT
    slots: int = 2
    prefill_rows: int = 512


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes on one device.

    prepared   weights as its kernels repack them
    mapped     weights read in place from the checkpoint's files
    kv         key and value pools
    recurrent  conv rings, memories and tapes of every slot
    tables     page table, counts, suppressed ids, rotary angles
    step       the step table
    workspace  activations by liveness, with the picks
    scratch    what the kernels ask for
    largest    the largest single buffer
    """

    prepared: int
    mapped: int
    kv: int
    recurrent: int
    tables: int
    step: int
    workspace: int
    scratch: int
    largest: int

    @property
    def weights(self) -> int:
        return self.prepared + self.mapped

    @property
    def buffers(self) -> int:
        """Bytes that `Device.alloc` is asked for."""
        parts = (self.kv, self.recurrent, self.tables, self.step, self.workspace, self.scratch)
        return sum(parts)

    @property
    def total(self) -> int:
        return self.weights + self.buffers


def capacity_for(config: ModelConfig, slots: int, context: int) -> Capacity:
    """Return the state that a load keeps: pages for every slot but the one kept back."""
    sequences = max(slots - 1, 1)
    draft = config.block.block_size if config.block is not None else 1
    return Capacity(slots, context, sequences * -(-context // PAGE_ROWS), draft, StepLayout())


def taken(
    config: ModelConfig,
    weights: Mapping[str, HostWeight],
    device: Device,
    host: Device,
    setting: Setting,
    context: int,
    *,
    with_passes: bool = True,
) -> dict[Place, Taken]:
    """Return what a load and its passes take on each device; no weight is read.

    The plan is bound to devices that only count.

    host         the cpu device behind; the same object where `device` is the cpu
    with_passes  else what a load takes before its first pass: weights and state
    Raises Unsupported where neither device takes an operation.
    """
    capacity = capacity_for(config, setting.slots, context)
    graph = build_graph(config, weights, capacity)
    counting = CountingDevice(device)
    behind = counting if host is device else CountingDevice(host)
    plan = bind(
        graph,
        counting,
        behind,
        layout=capacity.layout,
        context=context,
        precision=setting.precision,
    )
    if with_passes:
        for table, rows in passes(plan, setting, capacity.draft):
            for top in TOPS:
                plan.program(table, rows, top)
        if plan.graph.advances:
            bind_program(plan, plan.graph.advances, TableClass.COMMIT, 1, 1)
    devices = {Place.DEVICE: counting, Place.HOST: behind}
    return {place: _taken(plan, place, devices[place]) for place in plan.devices}


def passes(plan: Plan, setting: Setting, block: int) -> Iterator[tuple[TableClass, int]]:
    """Yield (class, rows) of the passes that requests make: prompts in chunks, then blocks."""
    largest = min(setting.prefill_rows, plan.max_rows)
    buckets = plan.placement.buckets[TableClass.COMMIT]
    limit = next(b for b in buckets if b >= largest)
    for bucket in reversed(buckets):
        if bucket <= limit:
            yield TableClass.COMMIT, bucket
    for table in (TableClass.PREVIEW, TableClass.VERIFY):
        if plan.accepts(table) and block > 1:
            yield table, block


def _taken(plan: Plan, place: Place, device: CountingDevice) -> Taken:
    states: Counter[str] = Counter()
    for name, home in plan.state_places.items():
        if home is place:
            states[_class(name)] += plan.resident(name, place).nbytes
    # constants are state too for a device: the rotary angles, where something reads them
    states["tables"] += device.allocated[Usage.STATE] - sum(states.values())
    return Taken(
        prepared=device.prepared,
        mapped=device.mapped,
        kv=states["kv"],
        recurrent=states["recurrent"],
        tables=states["tables"],
        step=device.allocated[Usage.PARAMS],
        workspace=device.allocated[Usage.EDGE],
        scratch=device.allocated[Usage.SCRATCH],
        largest=device.largest,
    )


def _class(name: str) -> str:
    last = name.rsplit(".", 1)[-1]
    return "kv" if last in KV else "tables" if last in TABLES else "recurrent"
