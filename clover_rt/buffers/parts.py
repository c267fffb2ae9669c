"""Weights on a device as they are stored, cut by rows where they exceed its largest buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Buffer
from clover_rt.errors import OutOfMemory
from clover_rt.spec import HostWeight, Weight

Array = npt.NDArray[Any]
B = TypeVar("B", bound=Buffer, covariant=True)
READ_BYTES = 1 << 26
"""About how much is read from a file at a time."""


class BufferDevice(Protocol[B]):
    """What weights are copied to.

    allocate  returns zeroed memory; its OutOfMemory names what it is for
    """

    name: str
    max_binding_bytes: int

    def allocate(self, nbytes: int, what: str) -> B: ...
    def upload(self, dst: Buffer, offset: int, src: Array) -> None: ...


@dataclass(frozen=True, slots=True)
class Part(Generic[B]):
    """Rows `first` .. `first + count - 1` of the first axis, in buffers of their own.

    buffers  codes, and scale and zero where the weight has them
    """

    first: int
    count: int
    buffers: Mapping[str, B]

    @property
    def has_zero(self) -> bool:
        return "zero" in self.buffers


def in_parts(
    device: BufferDevice[B],
    weights: Mapping[str, HostWeight],
    multiple: int = 1,
    most_numbers: int | None = None,
) -> dict[str, tuple[Part[B], ...]]:
    """Copy weights to the device, all cut at the same rows of their first axis.

    All parts of a weight but the last have the same count.

    multiple      what the rows of a part are a multiple of, where there is more than one part
    most_numbers  how many a part may have
    Raises OutOfMemory (CRT-3245) where the least part does not fit into a buffer.
    """
    rows = _rows_of_a_part(device, list(weights.values()), multiple, most_numbers)
    return {name: _parts(device, weight, rows) for name, weight in weights.items()}


def _rows_of_a_part(
    device: BufferDevice[B],
    weights: Sequence[HostWeight],
    multiple: int,
    most_numbers: int | None,
) -> int:
    """Return how many rows of the first axis fit into one buffer of every weight."""
    rows = max(w.shape[0] for w in weights)
    for w in weights:
        # the codes are the largest field of a weight
        codes = w.pieces[0].codes
        each = codes.nbytes // codes.shape[0]
        fit = device.max_binding_bytes // each
        if most_numbers is not None:
            fit = min(fit, most_numbers // math.prod(w.shape[1:]))
        if fit < rows:
            rows = fit // multiple * multiple
        if rows == 0:
            raise OutOfMemory(
                what=f"{w.name} was to be copied to {device.name}",
                evidence=f"{multiple} rows of its first axis take {each * multiple} bytes, the "
                f"largest buffer holds {device.max_binding_bytes}",
                fix="quantize the checkpoint to q4 or q8, or use --backend cpu",
                code="CRT-3245",
            )
    return rows


def _parts(device: BufferDevice[B], weight: HostWeight, rows: int) -> tuple[Part[B], ...]:
    total = weight.shape[0]
    parts = tuple(
        _empty(device, weight, first, min(rows, total - first)) for first in range(0, total, rows)
    )
    step = READ_BYTES // max(weight.nbytes // total, 1)
    for start, piece in weight.slices(max(1, min(rows, step))):
        done = 0
        while done < piece.shape[0]:
            part = parts[(start + done) // rows]
            count = min(piece.shape[0] - done, part.first + part.count - start - done)
            _fill(device, part, start + done - part.first, piece[done : done + count])
            done += count
    return parts


def _empty(device: BufferDevice[B], weight: HostWeight, first: int, count: int) -> Part[B]:
    piece = weight.pieces[0].with_zero() if weight.has_zero else weight.pieces[0]
    buffers = {
        name: device.allocate(array.nbytes // piece.shape[0] * count, f"{name} of {weight.name}")
        for name, array in _fields(piece)
    }
    return Part(first, count, buffers)


def _fill(device: BufferDevice[B], part: Part[B], row: int, piece: Weight) -> None:
    for name, array in _fields(piece):
        data = np.ascontiguousarray(array)
        device.upload(part.buffers[name], row * (data.nbytes // piece.shape[0]), data)


def _fields(piece: Weight) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a piece."""
    arrays = {"codes": piece.codes, "scale": piece.scale, "zero": piece.zero}
    for name, array in arrays.items():
        if array is not None:
            yield name, array
