"""The first run on a device: two layers of the user's own model, judged by the cpu backend.

A driver, a compiler or a card can compute wrong without an error. So before a device runs a model
for the first time, the model's first GDN layer and its first attention layer run on it and on the
cpu: a piece of a prompt, one token behind it, and a block's preview where the checkpoint has one.
Each op starts from the cpu's rows, so that a deviation is charged to the op that makes it. What
has passed is remembered in the cache folder, see `remembered`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from clover_rt import __version__
from clover_rt.api.remembered import Remembered
from clover_rt.backend import Device, DeviceInfo
from clover_rt.errors import BackendUnavailable, NonFinite
from clover_rt.model.build import Capacity, build_graph
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.plan import Plan, Progress, bind
from clover_rt.plugins import STRICT, open_device, survey
from clover_rt.spec import (
    PAGE_ROWS,
    DType,
    Format,
    HostWeight,
    Kind,
    Numerics,
    Pass,
    Precision,
    Segment,
    TableClass,
    Weight,
)
from clover_rt.weights import load_weights

if TYPE_CHECKING:
    from clover_rt.api.loading import Opened

Array = npt.NDArray[Any]
Note = Callable[[str], None]

# over a page of the KV cache and over a chunk of the delta rule
PROMPT_ROWS = PAGE_ROWS + 8
EMBEDDINGS = 128
SAMPLE_BYTES = 4096
LIMITS: Mapping[Numerics, float] = {
    # sums in another order are off by 1e-6 to 1e-5, products in tf32 by 5e-4, a wrong row, group or
    # expert by 1e-1 and more
    Numerics.F32: 2e-4,
    # 4 times what it moves the cases of the layers' contracts to round each edge
    Numerics.BF16: 0.12,
    # 0.015 at most with random weights and with trained ones; a number far above the others of its
    # group of 32 coarsens them in proportion, and adds little itself where its weights are small
    Numerics.INT8_G32: 0.25,
}
"""How far an op's rows may be off, as a share of the largest change that the op makes."""
ROUTING: Mapping[Numerics, float] = {
    Numerics.F32: 1e-4,
    Numerics.BF16: 2e-2,
    Numerics.INT8_G32: 4e-2,
}
"""Gap behind the last expert chosen, as a share of the logits' size, within which rounding may
choose another one."""
TIED = 0.5
"""The limit of such a row: the expert that is exchanged has the least weight of all."""
# the rows come as float32: a change that is small beside them has their rounding
STREAM = 2.0**-20


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far a device's rows are from the cpu's behind one op of a pass, and how far they may be.

    layer  its number in the checkpoint
    """

    layer: int
    op: str
    rows: str
    value: float
    limit: float

    @property
    def is_right(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        return (
            f"layer {self.layer}, {self.op}, {self.rows}: off by {self.value:.2g} of the largest "
            f"change, at most {self.limit:.2g} is right"
        )


@dataclass(frozen=True, slots=True)
class FirstRun:
    """What the first run of a model on a device came to.

    result       "passed" now, or "remembered" from an earlier run
    comparisons  how many there were
    deviation    the largest, measured by its limit
    """

    result: str
    comparisons: int
    deviation: float
    limit: float

    @classmethod
    def remembered(cls, found: Mapping[str, Any] | None) -> FirstRun | None:
        """Return what was kept; None for nothing, or for a file of other contents."""
        match found:
            case {"deviations": [*told], "largest": [float(value), float(limit)]}:
                return cls("remembered", len(told), value, limit)
        return None


@dataclass(frozen=True, slots=True)
class Layers:
    """A model of a few of a checkpoint's layers, over a small table of its embeddings.

    numbers  the layers' numbers in the checkpoint
    """

    config: ModelConfig
    weights: Mapping[str, HostWeight]
    numbers: tuple[int, ...]


def check(
    opened: Opened,
    *,
    strict: bool = False,
    allow_reference: bool = False,
    on_progress: Progress | None = None,
    on_note: Note | None = None,
) -> FirstRun | None:
    """Check a device that has not run this model before; return what came of it.

    on_progress, on_note  as of `load`
    None where there is nothing to check: the cpu, or a device that no plugin offered. Raises
    BackendUnavailable (CRT-3015) with the numbers where the two disagree, and NonFinite (CRT-4002)
    where the cpu itself computes inf or NaN.
    """
    device, info = opened.device, opened.device.info
    if device is opened.host or info is None:
        return None
    checkpoint = opened.source.checkpoint
    weights = load_weights(checkpoint)
    layers = some_layers(checkpoint.config, weights)
    key = {
        "backend": opened.backend,
        "origin": device.origin,
        "device": f"{info.id} {info.name}",
        "driver": {name: text for name, text in info.notes.items() if name != "chosen"},
        "precision": opened.precision.value,
        "version": __version__,
        "model": model_hash(weights, layers),
    }
    memory = Remembered(key)
    kept = FirstRun.remembered(memory.found)
    if kept is not None:
        return kept
    tell = on_note or _nobody
    tell(
        f"first run of this model on {device.name}: comparing two of its layers with the cpu, "
        "which compiles their kernels"
    )
    with ExitStack() as stack:
        # of their own, so that their memory is free again before the model is loaded
        own, host = open_device(opened.backend, info.id)[1], open_device("cpu")[1]
        stack.callback(host.close)
        stack.callback(own.close)
        capacity = Capacity(1, 2 * PAGE_ROWS, 2, opened.capacity.draft, opened.capacity.layout)
        graph = build_graph(layers.config, layers.weights, capacity)

        def bound(place: Device, precision: Precision) -> Plan:
            return bind(
                graph,
                place,
                host,
                layout=capacity.layout,
                context=capacity.context,
                precision=precision,
                strict=strict,
                allow_reference=allow_reference,
                on_progress=on_progress,
            )

        plan, reference = bound(own, opened.precision), bound(host, Precision.EXACT)
        found = list(deviations(plan, reference, layers, capacity.draft, on_progress))
    wrong = [d for d in found if not d.is_right]
    if wrong:
        instead = _instead(opened.backend, info)
        raise BackendUnavailable(
            what=f"{device.name} and the cpu compute different numbers with this model",
            evidence=f"{len(wrong)} of {len(found)} comparisons: {'; '.join(map(str, wrong))}",
            fix=f"use {instead}; update the device's driver or toolchain; "
            f"`clover-rt conformance --backend {opened.backend} --device {info.id}` tells which "
            "kernel is wrong",
            code="CRT-3015",
        )
    worst = max(found, key=lambda d: d.value / d.limit)
    memory.keep(
        {"deviations": [str(d) for d in found], "largest": [float(worst.value), float(worst.limit)]}
    )
    tell(
        "two layers agree with the cpu; "
        f"the largest deviation is {worst.value:.2g} of {worst.limit:.2g}"
    )
    return FirstRun("passed", len(found), worst.value, worst.limit)


def _nobody(note: str) -> None:
    """Tell a line to nobody."""


def _instead(backend: str, info: DeviceInfo) -> str:
    """Return what else drives the same card on this machine, and the cpu, as flags to choose."""
    # a plugin that is broken must not hide what is wrong here
    environ = {name: value for name, value in os.environ.items() if name != STRICT}
    ways = []
    for row in survey(environ=environ):
        for other in row.devices:
            engine = other.notes.get("engine", "")
            is_same_way = row.name == backend and engine == info.notes.get("engine", "")
            if not is_same_way and _is_same_card(info, other):
                told = f"{other.name}, engine {engine}" if engine else other.name
                ways.append(f"--backend {row.name} --device {other.id} ({told})")
    return f"{', '.join(ways)} or --backend cpu" if ways else "--backend cpu"


def _is_same_card(info: DeviceInfo, other: DeviceInfo) -> bool:
    """Do the names or architectures of two devices tell of one card? Drivers name it their way."""
    if other.is_software or other.kind == "cpu":
        return False
    own, theirs = (
        [d.name.casefold(), d.notes.get("arch", d.name).casefold()] for d in (info, other)
    )
    return any(_names(a, b) or _names(b, a) for a in own for b in theirs)


def _names(part: str, whole: str) -> bool:
    """Is a name part of another one? "7900 XT" is not of "7900 XTX"."""
    return bool(part) and re.search(rf"(?<!\w){re.escape(part)}(?!\w)", whole) is not None


def some_layers(config: ModelConfig, weights: Mapping[str, HostWeight]) -> Layers:
    """Return the first layer of each kind as a model of its own; experts are not read."""
    kinds = config.layer_types
    numbers = tuple(sorted({kinds.index(kind) for kind in LayerType if kind in kinds}))
    table = HostWeight.of(some_rows(weights["embed"], EMBEDDINGS), weights["embed"].name)
    chosen = {"norm": weights["norm"], "embed": table, "head": table}
    for place, number in enumerate(numbers):
        start = f"layers.{number}."
        for name, weight in weights.items():
            if name.startswith(start):
                chosen[f"layers.{place}.{name.removeprefix(start)}"] = weight
    small = replace(config, layer_types=tuple(kinds[n] for n in numbers), vocab_size=table.shape[0])
    return Layers(small, chosen, numbers)


def some_rows(weight: HostWeight, count: int) -> Weight:
    """Return rows of a weight from its first to its last, in float32."""
    wanted = np.unique(np.linspace(0, weight.shape[0] - 1, count).astype(int)).tolist()
    rows, start = [], 0
    for piece in weight.pieces:
        stop = start + piece.shape[0]
        rows += [piece[i - start : i - start + 1] for i in wanted if start <= i < stop]
        start = stop
    values = np.concatenate([row.values(np.float32) for row in rows])
    return Weight(Format.F32, values.shape, values)


def model_hash(weights: Mapping[str, HostWeight], layers: Layers) -> str:
    """Return a hash of a model: the shape of all of it, and samples of the layers that are checked.

    A sample is the beginning of a weight's first and last piece: a release is not read whole.
    """
    digest = hashlib.sha256(repr(layers.config).encode())
    for name in sorted(weights):
        w = weights[name]
        digest.update(repr((name, w.format.value, w.shape, w.group)).encode())
    for name in sorted(layers.weights):
        pieces = layers.weights[name].pieces
        for codes in (pieces[0].codes, pieces[-1].codes):
            # by index: experts may be parts of a larger tensor, which a reshape would copy
            row = codes[(0,) * (codes.ndim - 1)]
            digest.update(row.tobytes()[:SAMPLE_BYTES])
    return digest.hexdigest()


def deviations(
    plan: Plan,
    reference: Plan,
    layers: Layers,
    block: int,
    on_progress: Progress | None = None,
) -> Iterator[Deviation]:
    """Run the same passes on both and yield how far each op of a layer is off in each of them.

    on_progress is told of each step of the device before it runs: it may have to be compiled.
    """
    passes = list(_passes(plan, reference, layers, block))
    total = sum(len(plan.program(work.table, len(work.tokens)).actions) for work, _ in passes)
    steps = count()

    def on_step(name: str) -> None:
        if on_progress is not None:
            on_progress(next(steps), total, f"comparing {name}")

    for work, told in passes:
        want = reference.follow(work, {})
        for name, rows in want.items():
            if not np.isfinite(rows).all():
                raise NonFinite(
                    what="two of the checkpoint's layers give inf or NaN on the cpu too",
                    evidence=f"behind {_layer(layers, name)}, {told}",
                    fix="check the checkpoint's weights: make or copy it anew",
                    code="CRT-4002",
                )
        got = plan.follow(work, want, on_step)
        yield from _compared(plan, layers, work.segments[0].kind, told, got, want)
    if on_progress is not None:
        on_progress(total, total, "comparing")


def _passes(plan: Plan, reference: Plan, layers: Layers, block: int) -> Iterator[tuple[Pass, str]]:
    """Yield the passes that are compared, and what each is of."""
    start = 0
    for kind, rows, told in _segments(plan, reference, block):
        ids = tuple((start + i) % layers.config.vocab_size for i in range(rows))
        # pages in an order of their own
        pages = ((0, 0, 1), (0, 1, 0)) if start == 0 else ()
        yield Pass((Segment(kind, 0, 0, rows, start),), ids, page_deltas=pages), told
        if kind is Kind.COMMIT:
            start += rows


def _segments(plan: Plan, reference: Plan, block: int) -> Iterator[tuple[Kind, int, str]]:
    most = min(plan.max_rows, reference.max_rows)
    rows = min(PROMPT_ROWS, most)
    yield Kind.COMMIT, rows, f"{rows} rows of a prompt"
    yield Kind.COMMIT, 1, "one row behind them"
    if plan.accepts(TableClass.PREVIEW) and 1 < block <= most:
        yield Kind.PREVIEW, block, f"a block of {block} rows"


def _compared(
    plan: Plan,
    layers: Layers,
    kind: Kind,
    told: str,
    got: Mapping[str, Array],
    want: Mapping[str, Array],
) -> Iterator[Deviation]:
    """Yield the deviations of one pass, op by op."""
    for node in plan.graph.nodes:
        if node.op not in ("gdn", "attention", "moe"):
            continue
        # the coreset of a block couples its rows, so that one near-tie would excuse all of them
        if node.op == "moe" and kind is Kind.PREVIEW:
            continue
        before = want[node.operands["h"]]
        numerics = _numerics(plan, node.name)
        place = int(node.name.split(".")[1])
        limits = np.full(len(before), LIMITS[numerics])
        if node.op == "moe":
            tied = near_ties(before, layers, place, ROUTING[numerics])
            limits[tied] = np.maximum(limits[tied], TIED)
        errors = _errors(got[node.name], want[node.name], before)
        row = int(np.argmax(errors / limits))
        yield Deviation(
            layers.numbers[place], node.op, told, float(errors[row]), float(limits[row])
        )


def _layer(layers: Layers, name: str) -> str:
    """Return a node's name with its layer's number in the checkpoint."""
    first, *rest = name.split(".")
    if first == "layers" and rest:
        return ".".join(["layers", str(layers.numbers[int(rest[0])]), *rest[1:]])
    return name


def _errors(got: Array, want: Array, before: Array) -> Array:
    """Return the largest error of each row, as a share of the largest change; inf for NaN."""
    change = np.abs(want - before).max(initial=0.0) + STREAM * np.abs(want).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        errors = np.abs(got.astype(np.float64) - want).max(axis=-1)
    share: Array = np.where(np.isfinite(errors), errors, np.inf) / max(change, np.finfo(float).tiny)
    return share


def near_ties(h: Array, layers: Layers, place: int, near: float) -> Array:
    """Return which rows have an expert just behind the last one that is chosen, bool [T]."""
    config, weights = layers.config, layers.weights
    if config.experts <= config.experts_per_token:
        return np.zeros(len(h), bool)
    norm, router = (
        weights[f"layers.{place}.{name}"].whole().values() for name in ("post_norm", "router")
    )
    x = h.astype(np.float64)
    x /= np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.eps)
    logits = (x * (1 + norm)) @ router.T
    ranked = np.sort(logits, axis=-1)[:, ::-1]
    last = config.experts_per_token
    gap = ranked[:, last - 1] - ranked[:, last]
    tied: Array = gap <= near * np.sqrt((logits**2).mean(axis=-1))
    return tied


def _numerics(plan: Plan, name: str) -> Numerics:
    """Return the loosest of what a layer op's steps compute with, and of the types between them."""
    used = {c.numerics for c in plan.choices if c.node == name or c.node.startswith(f"{name}/")}
    signatures = plan.placement.signatures.values()
    types = {s.dtype(d) for s in signatures for d in (DType.EDGE, DType.KV)}
    if types != {"float32"}:
        used.add(Numerics.BF16)
    return max(used, key=lambda n: LIMITS[n])
