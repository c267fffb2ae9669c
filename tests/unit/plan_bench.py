"""Golden checkpoints bound to toy devices, and the passes that tests run on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from clover_rt.graph import Graph, ValueKind
from clover_rt.model.build import Capacity, build_graph
from clover_rt.ops import OPS
from clover_rt.plan import Plan, bind
from clover_rt.spec import (
    PAGE_ROWS,
    HostWeight,
    Kind,
    Pass,
    Segment,
    StepLayout,
    Wanted,
)
from clover_rt.weights import Checkpoint, load_weights
from tests.golden import assert_close, checkpoint
from tests.toy import PRIMITIVES, ToyDevice

LAYOUT = StepLayout(rows=256, segments=8, wanted=64, page_deltas=16, count_deltas=64)
BUCKETS = [1, 16, 32, 64, 256]
CONTEXT, SLOTS = 256, 3
# a few float32 roundings of logits up to 14; a wrong row or state is off by 1e-2 and more
ROUNDING = 1e-5
SLOT_PAGES = CONTEXT // PAGE_ROWS


@cache
def model(name: str):
    """Return (config, weights) of a golden checkpoint."""
    opened = Checkpoint.open(checkpoint(name))
    return opened.config, load_weights(opened)


def golden_graph(name: str = "clover_tiny", layers: int | None = None, **patched) -> Graph:
    """Return the graph of a golden checkpoint.

    layers   its layers, repeated up to this many
    patched  weight name with `__` for `.` -> HostWeight that takes its place
    """
    config, weights = model(name)
    weights = {**weights, **{key.replace("__", "."): w for key, w in patched.items()}}
    if layers is not None:
        pattern = config.layer_types
        deep = {n: w for n, w in weights.items() if not n.startswith("layers.")}
        for i in range(layers):
            source = f"layers.{i % len(pattern)}."
            for n in [n for n in weights if n.startswith(source)]:
                deep[f"layers.{i}.{n.removeprefix(source)}"] = weights[n]
        types = tuple(pattern[i % len(pattern)] for i in range(layers))
        config, weights = replace(config, layer_types=types), deep
    return build_graph(config, weights, Capacity(SLOTS, CONTEXT, SLOTS * SLOT_PAGES, 32, LAYOUT))


def bind_toy(device, host=None, graph: Graph | None = None, **options) -> Plan:
    graph = golden_graph() if graph is None else graph
    return bind(graph, device, host, layout=LAYOUT, context=CONTEXT, **options)


def native(name: str = "toy", **options) -> ToyDevice:
    """Return a device with every op."""
    return ToyDevice(name, OPS, **options)


def host() -> ToyDevice:
    """Return a host device: every primitive, as a cpu backend would have."""
    return ToyDevice("host", PRIMITIVES)


def without(*names: str) -> list[str]:
    """Return the primitives but for some."""
    return [op for op in PRIMITIVES if op not in names]


def commit(ids, slot: int = 0, position: int = 0, wanted=(), **more) -> Pass:
    """Return a commit of ids in a slot, with its pages."""
    return one_segment(Kind.COMMIT, ids, slot, position, wanted, **more)


def preview(ids, slot: int = 0, position: int = 0, wanted=(), **more) -> Pass:
    return one_segment(Kind.PREVIEW, ids, slot, position, wanted, **more)


def verify(ids, slot: int = 0, position: int = 0, wanted=(), **more) -> Pass:
    return one_segment(Kind.VERIFY, ids, slot, position, wanted, **more)


def one_segment(kind, ids, slot, position, wanted, **more) -> Pass:
    """Return a pass of one segment; `wanted` is rows, or "all"."""
    rows = range(len(ids)) if wanted == "all" else wanted
    return Pass(
        (Segment(kind, slot, 0, len(ids), position),),
        tuple(int(i) for i in ids),
        wanted=tuple(Wanted(r, r + 1) for r in rows),
        page_deltas=pages(slot),
        **more,
    )


def pages(slot: int) -> tuple[tuple[int, int, int], ...]:
    """Return deltas that give a slot all its pages, in an order of its own."""
    first = slot * SLOT_PAGES
    return tuple((slot, i, first + SLOT_PAGES - 1 - i) for i in range(SLOT_PAGES))


def states(plan: Plan) -> dict[str, np.ndarray]:
    """Return a copy of every state: tables, rings, memories, pools, tapes."""
    values = plan.graph.values.values()
    return {v.name: plan.state(v.name) for v in values if v.kind is ValueKind.STATE}


def assert_same_bytes(got: dict, want: dict, but: tuple[str, ...] = ()) -> None:
    """Fail with the first state whose bytes differ; names ending in `but` are left out."""
    assert got.keys() == want.keys()
    for name in got:
        if not name.endswith(but) or not but:
            assert got[name].tobytes() == want[name].tobytes(), f"{name} changed"


def assert_near_picks(got, want, bound: float = ROUNDING) -> None:
    """Compare candidates by logit, best ids, log-sum-exp and entropy."""
    assert got.finite and want.finite
    np.testing.assert_array_equal(got.ids[:, 0], want.ids[:, 0])
    for name in ("logits", "lse", "entropy", "probe"):
        assert_close(getattr(got, name), getattr(want, name), bound, name)


def assert_near_slots(got: dict, want: dict, pairs, bound: float = ROUNDING) -> None:
    """Compare ring and memory of slots: pairs are (slot of got, slot of want)."""
    names = [n for n in got if n.endswith((".ring", ".S"))]
    assert names
    for name in names:
        for a, b in pairs:
            assert_close(got[name][a], want[name][b], bound, f"{name} of slot {a}")


def cache_rows(plan: Plan, layer: int, slot: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k and v rows 0 .. length - 1 of a slot, [length, heads, width]."""
    places = np.arange(length)
    table = plan.state("page_table")[slot]
    rows = table[places // PAGE_ROWS] * PAGE_ROWS + places % PAGE_ROWS
    config, _ = model("clover_tiny")
    shape = (length, config.kv_heads, config.head_dim)
    names = (f"layers.{layer}.k_pool", f"layers.{layer}.v_pool")
    k, v = (plan.state(name)[rows].reshape(shape) for name in names)
    return k, v


def changed(weight: HostWeight, change) -> HostWeight:
    """Return a copy of a weight whose codes `change` has edited in place."""
    whole = weight.whole()
    codes = whole.codes.copy()
    change(codes)
    return HostWeight.of(replace(whole, codes=codes), weight.name)
