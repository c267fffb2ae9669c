"""The step table as generated code reads it, and loops over vectors with a cut-off last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.spec import HostWeight, Kind, StepLayout
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.values import F32V, I16, I32, I64, LANES, Value, vec

Array = npt.NDArray[Any]
SEGMENT_BYTES = 32


@dataclass(frozen=True)
class SegmentAt:
    """One segment's numbers, as 64-bit integers."""

    kind: Value
    slot: Value
    row0: Value
    rows: Value
    position: Value

    @property
    def is_preview(self) -> Value:
        return self.kind.equals(int(Kind.PREVIEW))

    @property
    def is_commit(self) -> Value:
        return self.kind.equals(int(Kind.COMMIT))

    @property
    def is_verify(self) -> Value:
        return self.kind.equals(int(Kind.VERIFY))


class Table:
    """The table at an address; the places of its sections are arguments of the kernel."""

    def __init__(self, code: Code, params: Value, segments: Value) -> None:
        self.code = code
        self.params = params
        self.segments = segments

    def header(self, index: int) -> Value:
        """Return a word of the header: 1 rows, 2 segments, 3 wanted."""
        return self.code.load(I32, self.params + 4 * index).to(I64)

    def segment(self, index: Value) -> SegmentAt:
        at = self.params + self.segments + index * SEGMENT_BYTES
        return SegmentAt(*(self.code.load(I32, at + 4 * i).to(I64) for i in range(5)))

    @contextmanager
    def each(self) -> Iterator[SegmentAt]:
        """Run the body for each segment that has rows."""
        with self.code.loop(0, self.header(2)) as i:
            s = self.segment(i)
            with self.code.when(s.rows > 0):
                yield s


def offsets(layout: StepLayout, *names: str) -> tuple[int, ...]:
    """Return the byte offsets of sections of the step table."""
    return tuple(layout.sections[name][0] for name in names)


class Lanes:
    """Loads and stores of vectors of 16, whole or cut off."""

    def __init__(self, code: Code, left: Value | None) -> None:
        self.code = code
        self.left = left
        self.mask = None if left is None else code.live(left)

    def load(self, address: Value, kind: Any = F32V) -> Value:
        if self.mask is None:
            return self.code.load(kind, address)
        return self.code.masked(kind, address, self.mask)

    def store(self, value: Value, address: Value) -> None:
        if self.mask is None:
            self.code.store(value, address)
        else:
            self.code.masked_store(value, address, self.mask)

    def pairs(self, address: Value) -> tuple[Value, Value]:
        """Return the even and the odd ones of 32 floats: of twice as many as are left."""
        code = self.code
        both = (
            [code.load(F32V, address), code.load(F32V, address + 4 * LANES)]
            if (self.left is None)
            else [
                code.masked(F32V, address, code.live(self.left * 2)),
                code.masked(F32V, address + 4 * LANES, code.live(self.left * 2 - LANES)),
            ]
        )
        even = both[0].pick(range(0, 2 * LANES, 2), both[1])
        return even, both[0].pick(range(1, 2 * LANES, 2), both[1])


def over_lanes(code: Code, count: Value, body: Callable[[Value, Lanes], None]) -> None:
    """Run body(first, lanes) over `count` numbers, 16 at a time."""
    whole = count - count % LANES
    with code.loop(0, whole, LANES) as k:
        body(k, Lanes(code, None))
    with code.when(whole < count):
        body(whole, Lanes(code, count - whole))


def to_bf16(code: Code, x: Value) -> Value:
    """Return float32 rounded to bfloat16 bits, ties to even."""
    bits = x.bits(I32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return code.select(is_nan, quiet, rounded).to(I16)


def bf16_bits(bits: Value) -> Value:
    """Return bfloat16 bits as int32 bits of the same float32."""
    return bits.to(I32, signed=False) << 16


def floats(weight: HostWeight) -> Array:
    """Return a small weight as float32."""
    return np.ascontiguousarray(weight.whole().values(np.float32))


I16V = vec(I16)
