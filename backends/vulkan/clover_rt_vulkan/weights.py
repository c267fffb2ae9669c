"""Weights on the device: as they are stored, cut by rows where they exceed the largest buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.errors import OutOfMemory
from clover_rt.spec import Format, HostWeight, Weight
from clover_rt_vulkan.device import FORMATS, VulkanBuffer, VulkanDevice

Array = npt.NDArray[Any]
FIELDS = ("codes", "scale", "zero")
# shaders count the numbers of a buffer in 32 bits
MOST_NUMBERS = 1 << 31


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `first` .. `first + count - 1` of the first axis, in buffers of their own."""

    first: int
    count: int
    buffers: Mapping[str, VulkanBuffer]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [..., N, K] on the device; all parts but the last have the same count."""

    format: Format
    group: int
    has_zero: bool
    width: int
    parts: tuple[Part, ...]

    def buffers(self, name: str, part: Part) -> dict[str, VulkanBuffer]:
        """Return a part's buffers by a shader's names; what a format lacks is never read."""
        codes = part.buffers["codes"]
        names = (name, f"{name}_scale", f"{name}_zero")
        return {n: part.buffers.get(field, codes) for n, field in zip(names, FIELDS, strict=True)}

    def constants(self, name: str) -> dict[str, int]:
        """Return the constants that choose how a shader decodes this weight."""
        prefix = name.upper()
        chosen = {f"{prefix}_FORMAT": FORMATS[self.format], "RAGGED": int(self.width % 8 != 0)}
        if self.format.is_quantised:
            chosen |= {f"{prefix}_GROUP": self.group, f"{prefix}_ZERO": int(self.has_zero)}
        return chosen


def matrices(
    device: VulkanDevice, weights: Mapping[str, HostWeight], multiple: int = 1
) -> dict[str, Matrix]:
    """Copy weights to the device, all cut at the same rows of their first axis.

    multiple  what the rows of a part are a multiple of, where there is more than one part
    """
    rows = _rows_of_a_part(device, list(weights.values()), multiple)
    return {name: _matrix(device, weight, rows) for name, weight in weights.items()}


def vector(device: VulkanDevice, values: Array, what: str) -> VulkanBuffer:
    """Copy numbers to the device as float32."""
    data = np.ascontiguousarray(values, np.float32)
    buffer = device.allocate(data.nbytes, what)
    device.upload(buffer, 0, data)
    return buffer


def vectors(device: VulkanDevice, weights: Mapping[str, HostWeight]) -> dict[str, VulkanBuffer]:
    """Copy weights to the device as float32."""
    return {
        name: vector(device, w.whole().values(np.float32), w.name) for name, w in weights.items()
    }


def _rows_of_a_part(device: VulkanDevice, weights: Sequence[HostWeight], multiple: int) -> int:
    """Return how many rows of the first axis fit into one buffer of every weight."""
    rows = max(w.shape[0] for w in weights)
    for w in weights:
        # the codes are the largest field of a weight
        codes = w.pieces[0].codes
        each = codes.nbytes // codes.shape[0]
        fit = min(device.max_binding_bytes // each, MOST_NUMBERS // math.prod(w.shape[1:]))
        if fit < rows:
            rows = fit // multiple * multiple
        if rows == 0:
            raise OutOfMemory(
                what=f"{w.name} was to be copied to {device.name}",
                evidence=f"{multiple} rows of its first axis take {each * multiple} bytes, the "
                f"largest buffer holds {device.max_binding_bytes}",
                fix="quantize the checkpoint to q4 or q8, or use --backend cpu",
                code="CRT-3250",
            )
    return rows


def _matrix(device: VulkanDevice, weight: HostWeight, rows: int) -> Matrix:
    total = weight.shape[0]
    has_zero = any(p.zero is not None for p in weight.pieces)
    parts = [
        _empty(device, weight, first, min(rows, total - first), has_zero)
        for first in range(0, total, rows)
    ]
    for start, piece in weight.slices(max(1, min(rows, _step(weight)))):
        done = 0
        while done < piece.shape[0]:
            part = parts[(start + done) // rows]
            count = min(piece.shape[0] - done, part.first + part.count - start - done)
            _fill(device, part, start + done - part.first, piece[done : done + count])
            done += count
    return Matrix(weight.format, weight.group, has_zero, weight.shape[-1], tuple(parts))


def _step(weight: HostWeight) -> int:
    """Return how many rows are read from the file at a time: about 64 MB."""
    return (1 << 26) // max(weight.nbytes // weight.shape[0], 1)


def _empty(device: VulkanDevice, weight: HostWeight, first: int, count: int, zero: bool) -> Part:
    piece = weight.pieces[0]
    sizes = {name: array.nbytes // piece.shape[0] for name, array in _fields(piece, zero)}
    buffers = {
        name: device.allocate(nbytes * count, f"{name} of {weight.name}")
        for name, nbytes in sizes.items()
    }
    return Part(first, count, buffers)


def _fill(device: VulkanDevice, part: Part, row: int, piece: Weight) -> None:
    for name, array in _fields(piece, "zero" in part.buffers):
        data = np.ascontiguousarray(array)
        device.upload(part.buffers[name], row * (data.nbytes // piece.shape[0]), data)


def _fields(piece: Weight, has_zero: bool) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a piece; one without zero points has 8 for them beside one with."""
    yield "codes", piece.codes
    if piece.scale is not None:
        yield "scale", piece.scale
        if has_zero:
            none = np.full(piece.scale.shape, 8, np.uint8) if piece.zero is None else piece.zero
            yield "zero", none
