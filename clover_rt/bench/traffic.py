"""What one step must move, by kind, counted from its operands: each is read or written once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from clover_rt.ops import OPS
from clover_rt.ops.common import weight_bytes
from clover_rt.spec import DType, Operand, OpSpec, Role, Signature, TableClass

TAPES = ("tape_u", "tape_k", "tape_v", "tape_g", "tape_beta")
MEMORIES = ("S", "ring")
ID_TABLES = ("counts", "suppressed")
COMMITS = (TableClass.COMMIT, TableClass.COMMIT_PREVIEW, TableClass.MIXED)
# ops without a row of their own in a table of previews alone
IDLE_IN_PREVIEWS = ("block_scan", "kv_append")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one step.

    experts      weights of the routed experts that are used
    weights      all other weights
    kv           rows of the KV cache
    state        memories, rings and tapes, and the tables of ids that a pick reads
    activations  rows that come from other steps or go to them: what caches may serve
    """

    experts: float = 0.0
    weights: float = 0.0
    kv: float = 0.0
    state: float = 0.0
    activations: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.experts + other.experts,
            self.weights + other.weights,
            self.kv + other.kv,
            self.state + other.state,
            self.activations + other.activations,
        )

    @property
    def cold(self) -> float:
        """Bytes that come from memory, whatever the caches hold."""
        return self.experts + self.weights + self.kv + self.state


def traffic(sig: Signature, live: Mapping[str, int]) -> Traffic:
    """Return what a step of a pass over one sequence moves.

    live  rows T, wanted rows W, keys L in the cache, distinct `experts` of the layer
    """
    spec = OPS[sig.op]
    idle = sig.table is TableClass.PREVIEW and sig.op in IDLE_IN_PREVIEWS
    if live["T"] == 0 or idle:
        return Traffic()
    axes = {**dict(sig.axes), "T": live["T"], "W": live["W"], "segments": 1}
    out = Traffic()
    for operand in spec.operands:
        if operand.role is not Role.PARAMS and sig.has(operand.name):
            out += _of(sig, spec, operand, axes, live)
    return out


def _of(
    sig: Signature, spec: OpSpec, o: Operand, axes: Mapping[str, int], live: Mapping[str, int]
) -> Traffic:
    shape = spec.shape(o.name, axes)
    if o.role is Role.WEIGHT:
        return _weight(sig, o, shape, live)
    size = sig.dtype(o.name).itemsize
    if o.dtype is DType.KV:
        reads = live["L"] if spec.name in ("attend", "attention") else 0
        writes = live["T"] if o.is_written and sig.table is not TableClass.PREVIEW else 0
        return Traffic(kv=float(size * shape[-1] * (reads + writes)))
    if o.name in MEMORIES:
        writes = o.is_written and sig.table in COMMITS
        return Traffic(state=float(size * math.prod(shape[1:]) * (2 if writes else 1)))
    if o.name in TAPES:
        rows = live["T"] if sig.table.has_verify else 0
        return Traffic(state=float(size * math.prod(shape[2:]) * rows))
    if o.name in ID_TABLES:
        read = o.role is Role.INPUT and live["W"] > 0
        return Traffic(state=float(size * math.prod(shape[1:]) * read))
    if o.name == "page_table":
        return Traffic()
    if o.name == "angles":
        return Traffic(activations=float(size * math.prod(shape[1:]) * live["T"]))
    return Traffic(activations=float(size * math.prod(shape)))


def _weight(sig: Signature, o: Operand, shape: tuple[int, ...], live: Mapping[str, int]) -> Traffic:
    count = math.prod(shape)
    if o.shape[0] == "E" and len(shape) == 3:
        used = min(live["experts"], shape[0])
        nbytes = weight_bytes(sig, o.name, count // shape[0] * used)
        # the shared expert is a stack of one that is not routed to
        return Traffic(experts=nbytes) if shape[0] > 1 else Traffic(weights=nbytes)
    if o.name == "embed":
        count = live["T"] * shape[-1]
    elif o.name == "head" and not live["W"]:
        count = 0
    return Traffic(weights=weight_bytes(sig, o.name, count))
