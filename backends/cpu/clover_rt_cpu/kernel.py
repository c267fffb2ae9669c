"""What every kernel of this backend shares: views over operands, scratch, the parsed table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Kernel, Tensor
from clover_rt.spec import Kind, Segment, Signature, StepLayout, StepParams
from clover_rt_cpu.workers import Workers

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]
ROW_BLOCK = 64
"""Rows that an elementwise kernel works on at a time, so that its scratch stays in cache."""

PLAIN_TYPES = ("float32", "int32", "uint32", "uint8")


@dataclass(frozen=True, slots=True)
class Rows:
    """The table of a pass: its segments, and the rows that they cover."""

    count: int
    segments: tuple[Segment, ...]

    @property
    def previews(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.kind is Kind.PREVIEW and s.rows)


class Table(StepParams):
    """StepParams whose segments are parsed once a pass, however many kernels ask."""

    _seen: bytes = b""
    _rows = Rows(0, ())

    def read(self) -> Rows:
        """Return the table's rows and segments."""
        seen = self.header.tobytes() + self._segments[: self.header[2]].tobytes()
        if seen != self._seen:
            self._rows = Rows(int(self.header[1]), tuple(self.segments))
            self._seen = seen
        return self._rows


class CpuKernel(Kernel):
    """A kernel in float32 whose rows' bits depend on nothing but the row."""

    types: tuple[str, ...] = PLAIN_TYPES

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        for name, dtype in sig.dtypes:
            if dtype not in self.types:
                return f"operand {name} is {dtype}; cpu computes with {' or '.join(self.types)}"
        return ""

    def shapes(self, sig: Signature) -> Shapes:
        """Return the float32 scratch arrays of a call by name."""
        return {}

    def scratch(self, sig: Signature) -> int:
        return sum(_padded(shape) for shape in self.shapes(sig).values())

    def room(self, sig: Signature, scratch: Tensor | None) -> dict[str, Array]:
        """Return the arrays of `shapes` as views over the scratch tensor."""
        out, start = {}, 0
        for name, shape in self.shapes(sig).items():
            assert scratch is not None, f"{sig.op} needs scratch memory"
            stop = start + 4 * math.prod(shape)
            out[name] = view(scratch).reshape(-1).view(np.uint8)[start:stop].view("<f4")
            out[name] = out[name].reshape(shape)
            start += _padded(shape)
        return out


def view(tensor: Tensor) -> Array:
    """Return an operand as a numpy array over the device's memory."""
    array: Array = tensor.buffer.part(tensor.offset, tensor.nbytes)  # type: ignore[attr-defined]
    return array.view(tensor.dtype).reshape(tensor.shape)


def views(operands: Mapping[str, Tensor], *names: str) -> tuple[Array, ...]:
    return tuple(view(operands[name]) for name in names)


def table_of(sig: Signature, operands: Mapping[str, Tensor]) -> Table:
    """Return the table over the params operand; kernels bound to one buffer share it."""
    tensor = operands["params"]
    layout: StepLayout = sig.layout
    tables = tensor.buffer.tables  # type: ignore[attr-defined]
    key = (tensor.offset, layout)
    if key not in tables:
        tables[key] = Table(layout, view(tensor).reshape(-1).view(np.uint8))
    found: Table = tables[key]
    return found


def blocks(rows: int, size: int = ROW_BLOCK) -> list[slice]:
    """Return slices that cut `rows` rows into pieces of at most `size`."""
    return [slice(lo, min(lo + size, rows)) for lo in range(0, rows, size)]


def silu_of(x: Array, e: Array) -> Array:
    """Replace x by x / (1 + e^-x) and return it; e is scratch of the same shape."""
    np.negative(x, out=e)
    np.exp(e, out=e)
    e += 1
    return np.divide(x, e, out=x)


def sigmoid_of(x: Array, out: Array) -> Array:
    """Write 1 / (1 + e^-x) to out and return it."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    return np.divide(1, out, out=out)


def _padded(shape: tuple[int, ...]) -> int:
    return -(-4 * math.prod(shape) // 64) * 64
