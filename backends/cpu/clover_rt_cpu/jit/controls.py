"""Response controls on a chunk of a row's logits, in the order of `clover_rt.ops.controls`."""

from __future__ import annotations

from clover_rt.spec.step import CONTROLS_DTYPE
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.table import Lanes, SegmentAt, Table, over_lanes
from clover_rt_cpu.jit.values import F32, F32V, I1, I16, I32, I32V, I64, LANES, Value, vec

MOST_IDS = 256
"""Ids of a chunk."""


class Controls:
    """Emits the controls; `counts` and `suppressed` are the device's tables."""

    def __init__(
        self,
        code: Code,
        table: Table,
        records: Value,
        tokens: Value,
        counts: Value,
        suppressed: Value,
        vocab: Value,
    ) -> None:
        self.code = code
        self.table = table
        self.records = table.params + records
        self.tokens = table.params + tokens
        self.counts = counts
        self.suppressed = suppressed
        self.vocab = vocab
        self.seen = code.room(4 * MOST_IDS)

    def apply(self, row: Value, first: Value, ids: Value, facts: list[Value]) -> None:
        """Change the logits of ids first .. first + ids - 1, which lie at `row`.

        facts  row, segment, response position and think flag of the wanted row, count_from
        """
        code = self.code
        wanted_row, owner, position, thinks, count_from = facts[:5]
        s = self.table.segment(owner)
        record = self.records + owner * CONTROLS_DTYPE.itemsize
        self._suppress(row, first, ids, s.slot)
        frequency, presence, repetition = (
            self._float(record, n) for n in ("frequency", "presence", "repetition")
        )
        changes = code.select(
            code.both(
                code.both(frequency.equals(0.0), presence.equals(0.0)), repetition.equals(1.0)
            ),
            code.const(I32, 0),
            code.const(I32, 1),
        )
        with code.when(changes > 0):
            self._count(first, ids, s, wanted_row, count_from)
            self._penalise(row, ids, frequency, presence, repetition)
        length = self._float(record, "length_penalty") * self._ramp(record, position, "length")
        with code.loop(0, self._whole(record, "stop_count")) as i:
            stop = code.load(I32, record + _at("stops") + i * 4).to(I64)
            self._add(row, first, ids, stop, length)
        with code.when(thinks.differs(0)):
            think = self._float(record, "think_bias") * self._ramp(record, position, "think")
            self._add(row, first, ids, self._whole(record, "think_end"), think)

    def _float(self, record: Value, name: str) -> Value:
        return self.code.load(F32, record + _at(name))

    def _whole(self, record: Value, name: str) -> Value:
        return self.code.load(I32, record + _at(name)).to(I64)

    def _ramp(self, record: Value, position: Value, name: str) -> Value:
        """Return how far a bias has grown, 0 to 1."""
        code = self.code
        start, window = (self._whole(record, f"{name}_{end}") for end in ("start", "window"))
        over = (position - start).to(F32)
        share = over / code.select(window > 0, window, 1).to(F32)
        share = code.least(code.most(share, 0.0), 1.0)
        step = code.select(position > start, code.const(F32, 1.0), code.const(F32, 0.0))
        return code.select(window > 0, share, step)

    def _add(self, row: Value, first: Value, ids: Value, token: Value, amount: Value) -> None:
        code = self.code
        with code.when(code.both(token >= first, token < first + ids)):
            at = row + (token - first) * 4
            code.store(code.load(F32, at) + amount, at)

    def _suppress(self, row: Value, first: Value, ids: Value, slot: Value) -> None:
        code = self.code
        mask = self.suppressed + slot * ((self.vocab + 31) // 32 * 4) + first // 8

        def cut(k: Value, at: Lanes) -> None:
            bits = code.load(I16, mask + k // 8)
            banned = Value(code, code.ir.bitcast(bits.raw, vec(I1, LANES)))
            value = code.load(F32V, row + k * 4, 64)
            # lanes past the ids are -inf already
            code.store(code.select(banned, float("-inf"), value), row + k * 4, 64)

        over_lanes(code, ids, cut)

    def _count(
        self, first: Value, ids: Value, s: SegmentAt, wanted_row: Value, count_from: Value
    ) -> None:
        """Write how often each id was seen, drafted rows of the segment included."""
        code = self.code
        source = self.counts + (s.slot * self.vocab + first) * 4
        over_lanes(
            code,
            ids,
            lambda k, at: code.store(at.load(source + k * 4, I32V), self.seen + k * 4, 64),
        )
        with code.when(count_from >= 0), code.loop(s.row0 + count_from, wanted_row + 1) as t:
            token = code.load(I32, self.tokens + t * 4).to(I64)
            with code.when(code.both(token >= first, token < first + ids)):
                at = self.seen + (token - first) * 4
                code.store(code.load(I32, at) + 1, at)

    def _penalise(
        self, row: Value, ids: Value, frequency: Value, presence: Value, repetition: Value
    ) -> None:
        code = self.code

        def lower(k: Value, at: Lanes) -> None:
            seen = code.load(I32V, self.seen + k * 4, 64)
            value = code.load(F32V, row + k * 4, 64)
            less = value - seen.to(F32) * frequency - presence
            less = code.select(less < 0.0, less * repetition, less / repetition.splat())
            code.store(code.select(seen > 0, less, value), row + k * 4, 64)

        over_lanes(code, ids, lower)


def _at(name: str) -> int:
    fields = CONTROLS_DTYPE.fields
    assert fields is not None
    return int(fields[name][1])
