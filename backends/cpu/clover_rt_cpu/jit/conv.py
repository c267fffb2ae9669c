"""causal_conv: an item is 64 channels; it runs through all segments in order, so that what a
preview reads behind a commit of its slot is the ring that this item has just written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.jit.kernel import JitKernel, addresses
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import silu
from clover_rt_cpu.jit.table import Lanes, SegmentAt, Table, floats, offsets, over_lanes
from clover_rt_cpu.jit.values import I64, Value

CHANNELS = 64


class CausalConv(JitKernel):
    """Convolve each channel over the rows before, in previews also over those after."""

    def refusal(self, sig: Signature) -> str:
        return "" if 2 <= sig["J"] <= 8 else f"{sig['J']} taps were asked for; 2 to 8 work"

    def denial(self, sig: Signature) -> str:
        if sig.table.has_preview and not sig.has("right"):
            return f"table class {sig.table.value} has previews, and there are 0 right taps"
        return ""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        names = [n for n in ("taps", "right") if n in weights]
        return np.concatenate([floats(weights[n]).T.ravel() for n in names])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        names = ("params", "u", "ring", "tape_u", "y")
        columns = sig["C"]
        words = (*addresses(operands, *names), prepared.ctypes.data, columns, sig["Q"])
        right, taps = sig.has("right"), sig["J"]
        unit = f"causal_conv_{taps}" + ("_right" if right else "")
        call = self.call(
            unit, lambda m, n: _emit(m, n, taps, right), *words, *offsets(sig.layout, "segments")
        )
        return self.step([call], operands, prepared)


def _emit(module: ir.Module, name: str, taps: int, right: bool) -> None:
    code = Code(module, name)
    params, u, ring, tape, y, weights, columns, draft, segments = code.args(9)
    table = Table(code, params, segments)
    with code.deal((columns + (CHANNELS - 1)) // CHANNELS) as item:
        first = item * CHANNELS
        count = code.least(columns - first, CHANNELS)
        with table.each() as s:

            def channels(c: Value, at: Lanes, s: SegmentAt = s) -> None:
                here = (first + c) * 4
                w = [at.load(weights + columns * (4 * j) + here) for j in range(taps)]
                later = [
                    at.load(weights + columns * (4 * (taps + d)) + here)
                    for d in range(taps - 1 if right else 0)
                ]
                own = u + s.row0 * columns * 4 + here
                out = y + s.row0 * columns * 4 + here
                base = ring + s.slot * columns * (4 * (taps - 1)) + here
                _rows(code, at, s, w, later, own, out, base, columns)

                def keep_tape() -> None:
                    to = tape + s.slot * draft * columns * 4 + here
                    with code.loop(0, s.rows) as t:
                        at.store(at.load(own + t * columns * 4), to + t * columns * 4)

                with code.when(s.is_commit):
                    _keep_ring(code, at, s, own, base, columns, taps)
                with code.when(s.is_verify):
                    keep_tape()

            over_lanes(code, count, channels)
    code.end()


def _rows(
    code: Code,
    at: Lanes,
    s: SegmentAt,
    w: list[Value],
    later: list[Value],
    own: Value,
    out: Value,
    ring: Value,
    columns: Value,
) -> None:
    window = [code.var(at.load(ring + columns * (4 * j))) for j in range(len(w) - 1)]
    with code.loop(0, s.rows) as t:
        row = at.load(own + t * columns * 4)
        total = row * w[-1]
        for tap, old in zip(w, window, strict=False):
            total = code.fma(tap, old.v, total)
        for old, newer in zip(window, window[1:], strict=False):
            old.v = newer.v
        window[-1].v = row
        whole = code.var(total)
        if later:
            with code.when(s.is_preview):
                for d, tap in enumerate(later, 1):
                    after = at.load(own + code.least(t + d, s.rows - 1) * columns * 4)
                    is_inside = t + d < s.rows
                    whole.v = code.select(is_inside.splat(), code.fma(tap, after, whole.v), whole.v)
        at.store(silu(code, whole.v), out + t * columns * 4)


def _keep_ring(
    code: Code, at: Lanes, s: SegmentAt, own: Value, ring: Value, columns: Value, taps: int
) -> None:
    """Shift the ring by the rows: row i becomes row i + rows of [ring | own]."""
    for i in range(taps - 1):
        index = s.rows + i
        from_ring = ring + index * columns * 4
        from_own = own + (index - (taps - 1)) * columns * 4
        source = code.select(index < code.const(I64, taps - 1), from_ring, from_own)
        at.store(at.load(source), ring + columns * (4 * i))
