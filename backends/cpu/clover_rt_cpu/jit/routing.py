"""Routing: router_topk, coreset, group_rows.

The largest numbers are found as int32 keys that compare as the numbers do: a NaN is below every
number, and a number that is taken, or not allowed, below that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.jit.kernel import JitKernel, addresses, row_count
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import exp, lanes_most, lanes_sum
from clover_rt_cpu.jit.table import Lanes, Table, offsets, over_lanes
from clover_rt_cpu.jit.values import F32, F32V, I8, I32, I32V, I64, LANES, Value, vec

MOST_EXPERTS = 4096
MOST_CHOICES = LANES
TAKEN = -(2**31)
NAN = TAKEN + 1


def keys_of(code: Code, x: Value) -> Value:
    """Return int32 keys of float32 numbers; both zeros get the same one."""
    bits = (x + 0.0).bits(I32)
    key = bits ^ (bits.sar(31) & 0x7FFFFFFF)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return code.select(is_nan, code.const(key.type, NAN), key)


def largest(code: Code, keys: Value, count: Value) -> tuple[Value, Value]:
    """Return the largest of int32 keys in memory and the first index that has it.

    count is a multiple of 16, and more than 0.
    """
    best = code.var(code.const(I32V, TAKEN))
    with code.loop(0, count, LANES) as k:
        best.v = code.most(best.v, code.load(I32V, keys + k * 4, 64))
    top = lanes_most(code, best.v)
    found = code.var(code.const(I64, -LANES))
    hits = code.var(code.const(I32, 0))
    with code.whilst(lambda: hits.v.equals(0)):
        found.v = found.v + LANES
        same = code.load(I32V, keys + found.v * 4, 64).equals(top)
        hits.v = Value(code, code.ir.bitcast(same.raw, ir.IntType(LANES))).to(I32, signed=False)
    first = code.intrinsic_with_flag("cttz", hits.v)
    return top, found.v + first.to(I64)


def write_keys(code: Code, logits: Value, allowed: Value, experts: Value, keys: Value) -> None:
    """Write the keys of a row, those past its end and those not allowed as taken."""

    def write(k: Value, at: Lanes) -> None:
        key = code.var(keys_of(code, at.load(logits + k * 4)))
        taken = code.const(I32V, TAKEN)
        with code.when(allowed.differs(0)):
            open_to = at.load(allowed + k, vec(I8)).to(I32)
            key.v = code.select(open_to.differs(0), key.v, taken)
        if at.mask is not None:
            key.v = code.select(at.mask, key.v, taken)
        code.store(key.v, keys + k * 4, 64)

    over_lanes(code, experts, write)


def whole_lanes(count: Value) -> Value:
    return (count + (LANES - 1)) // LANES * LANES


def too_many(sig: Signature) -> str:
    choices = int(sig.attr("top_k"))
    if sig["E"] > MOST_EXPERTS or choices > MOST_CHOICES:
        return (
            f"{sig['E']} experts and {choices} choices were asked for; "
            f"up to {MOST_EXPERTS} and {MOST_CHOICES} work"
        )
    return ""


class RouterTopk(JitKernel):
    """Choose the best allowed experts of each row."""

    def refusal(self, sig: Signature) -> str:
        return too_many(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        names = ("params", "logits", "allowed", "ids", "weights")
        words = (*addresses(operands, *names), sig["E"], sig.attr("top_k"))
        (owners,) = offsets(sig.layout, "row_segment")
        return self.step([self.call("router_topk", _router_topk, *words, owners)], operands)


def _router_topk(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, logits, allowed, ids, weights, experts, choices, owners = code.args(8)
    keys = code.room(4 * MOST_EXPERTS)
    chosen = code.room(4 * LANES)
    lo, hi = code.share(row_count(code, params))
    with code.loop(lo, hi) as row:
        source = logits + row * experts * 4
        owner = code.load(I32, params + owners + row * 4).to(I64)
        mask = code.select(allowed.differs(0), allowed + owner * experts, 0)
        write_keys(code, source, mask, experts, keys)
        code.store(code.const(F32V, 0.0), chosen, 64)
        count = code.var(code.const(I64, 0))
        odd = code.var(code.const(F32, 0.0))
        with code.loop(0, choices) as r:
            top, at = largest(code, keys, whole_lanes(experts))
            is_left = top > TAKEN
            pair = (row * choices + r) * 4
            code.store(code.select(is_left, at.to(I32), -1), ids + pair)
            with code.when(is_left):
                value = code.load(F32, source + at * 4)
                code.store(value, chosen + r * 4)
                with code.when(top.equals(NAN)):
                    odd.v = value
                code.store(code.const(I32, TAKEN), keys + at * 4)
                count.v = count.v + 1
        found = code.load(F32V, chosen, 64)
        live = code.live(count.v)
        peak = code.load(F32, chosen)
        shares = code.select(live, exp(code, found - peak), 0.0)
        # a row of -inf has no best: its weights are zeros
        shares = code.select((peak > float("-inf")).splat(), shares, 0.0)
        # NaN for all where one is chosen: it is never the first of several
        shares = shares + odd.v
        total = lanes_sum(shares).splat()
        shares = code.select(total.equals(0.0), 0.0, shares / total)
        code.masked_store(
            code.select(live, shares, 0.0), weights + row * choices * 4, code.live(choices)
        )
    code.end()


class Coreset(JitKernel):
    """Keep the experts that hold most of a block's mass."""

    def refusal(self, sig: Signature) -> str:
        return too_many(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        top_p = np.array([sig.attr("top_p")], np.float32)
        words = (
            *(*addresses(operands, "params", "logits", "allowed"), sig["E"], sig.attr("top_k")),
            *(top_p.ctypes.data, *offsets(sig.layout, "segments")),
        )
        return self.step([self.call("coreset", _coreset, *words)], operands, top_p)


def _coreset(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, logits, allowed, experts, choices, top_p, segments = code.args(7)
    table = Table(code, params, segments)
    shares, mass = code.room(4 * MOST_EXPERTS), code.room(4 * MOST_EXPERTS)
    limit = code.load(F32, top_p)
    lo, hi = code.share(table.header(2))
    with code.loop(lo, hi) as i:
        s = table.segment(i)
        out = allowed + i * experts
        cuts = code.both(s.is_preview, code.both(s.rows > 0, limit < 1.0))

        def fill(value: int, out: Value = out) -> None:
            with code.loop(0, experts) as e:
                code.store(code.const(I8, value), out + e)

        code.either(cuts, lambda: fill(0), lambda: fill(1))
        with code.when(cuts):
            zero = code.const(F32V, 0.0)
            with code.loop(0, experts, LANES) as k:
                code.store(zero, mass + k * 4, 64)
            with code.loop(s.row0, s.row0 + s.rows) as row:
                _add_best(code, logits + row * experts * 4, experts, choices, shares, mass)
            _keep(code, mass, experts, limit, out)
    code.end()


def _add_best(
    code: Code, logits: Value, experts: Value, choices: Value, shares: Value, mass: Value
) -> None:
    """Add a row's best shares to their experts' mass; they are kept as keys, which they equal."""
    peak = code.var(code.const(F32V, float("-inf")))
    total = code.var(code.const(F32V, 0.0))
    low = code.const(F32V, float("-inf"))

    def cut(at: Lanes, value: Value, other: Value) -> Value:
        return value if at.mask is None else code.select(at.mask, value, other)

    def find(k: Value, at: Lanes) -> None:
        peak.v = code.most(peak.v, cut(at, at.load(logits + k * 4), low))

    def share(k: Value, at: Lanes) -> None:
        value = cut(at, exp(code, at.load(logits + k * 4) - top), code.const(F32V, 0.0))
        total.v = total.v + value
        code.store(value, shares + k * 4, 64)

    over_lanes(code, experts, find)
    top = lanes_most(code, peak.v).splat()
    over_lanes(code, experts, share)
    whole = lanes_sum(total.v)

    def to_key(k: Value, at: Lanes) -> None:
        key = keys_of(code, code.load(F32V, shares + k * 4, 64) / whole)
        code.store(cut(at, key, code.const(I32V, TAKEN)), shares + k * 4, 64)

    over_lanes(code, experts, to_key)
    with code.loop(0, choices):
        key, at = largest(code, shares, whole_lanes(experts))
        # a share is not negative: its key is its bits
        with code.when(key >= 0):
            value = code.load(F32, mass + at * 4) + key.bits(F32)
            code.store(value, mass + at * 4)
            code.store(code.const(I32, TAKEN), shares + at * 4)


def _keep(code: Code, mass: Value, experts: Value, limit: Value, out: Value) -> None:
    """Mark the experts in falling order of mass while the mass before them is below the limit."""
    total = code.var(code.const(F32, 0.0))
    with code.loop(0, experts) as e:
        total.v = total.v + code.load(F32, mass + e * 4)

    def to_key(k: Value, at: Lanes) -> None:
        key = keys_of(code, at.load(mass + k * 4) / total.v)
        if at.mask is not None:
            key = code.select(at.mask, key, code.const(I32V, TAKEN))
        code.store(key, mass + k * 4, 64)

    over_lanes(code, experts, to_key)
    before = code.var(code.const(F32, 0.0))
    left = code.var(experts)
    with code.whilst(lambda: code.both(before.v < limit, left.v > 0)):
        key, at = largest(code, mass, whole_lanes(experts))
        code.store(code.const(I8, 1), out + at)
        code.store(code.const(I32, TAKEN), mass + at * 4)
        before.v = before.v + key.bits(F32)
        left.v = left.v - 1


class GroupRows(JitKernel):
    """Sort the pairs of a pass by expert: a counting sort of one thread."""

    def refusal(self, sig: Signature) -> str:
        if sig["E"] > MOST_EXPERTS:
            return f"{sig['E']} experts were asked for; up to {MOST_EXPERTS} work"
        return ""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        words = (*addresses(operands, "params", "ids", "order", "offsets"), sig["E"], sig["R"])
        return self.step([self.call("group_rows", _group_rows, *words)], operands)


def _group_rows(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, ids, order, bounds, experts, choices = code.args(6)
    ends = code.room(4 * MOST_EXPERTS)
    with code.when(code.part.equals(0)):
        pairs = row_count(code, params) * choices
        with code.loop(0, experts) as e:
            code.store(code.const(I32, 0), ends + e * 4)

        def each(body) -> None:  # type: ignore[no-untyped-def]
            with code.loop(0, pairs) as f:
                e = code.load(I32, ids + f * 4).to(I64)
                with code.when(code.both(e >= 0, e < experts)):
                    body(f, ends + e * 4)

        each(lambda f, end: code.store(code.load(I32, end) + 1, end))
        total = code.var(code.const(I32, 0))
        with code.loop(0, experts) as e:
            count = code.load(I32, ends + e * 4)
            code.store(total.v, ends + e * 4)
            code.store(total.v, bounds + e * 4)
            total.v = total.v + count
        code.store(total.v, bounds + experts * 4)

        def place(f: Value, end: Value) -> None:
            at = code.load(I32, end)
            code.store(f.to(I32), order + at.to(I64) * 4)
            code.store(at + 1, end)

        each(place)
        with code.loop(total.v.to(I64), pairs) as f:
            code.store(code.const(I32, -1), order + f * 4)
    code.end()
