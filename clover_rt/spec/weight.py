"""Weights are operands with a storage format; this page is the byte layout of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from clover_rt.errors import BadCheckpoint

Array = npt.NDArray[Any]


class Format(Enum):
    """How the numbers of a weight are stored.

    f32, f16, bf16  codes [..., N, K] in that type
    q8              codes int8 [..., N, K]; scale float16 [..., N, K/32]; w = code * scale
    q4              codes uint8 [..., N, K/2], low nibble = even k; scale float16 [..., N, K/g];
                    zero uint8 [..., N, K/g], or none for 8; w = (code - zero) * scale;
                    the group size g is 32, 64 or 128 and divides K
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8 = "q8"
    Q4 = "q4"

    @property
    def is_quantised(self) -> bool:
        return self in (Format.Q8, Format.Q4)

    @property
    def codes_dtype(self) -> np.dtype[Any]:
        return _CODES[self]


_CODES: dict[Format, np.dtype[Any]] = {
    Format.F32: np.dtype("<f4"),
    Format.F16: np.dtype("<f2"),
    Format.BF16: np.dtype(ml_dtypes.bfloat16),
    Format.Q8: np.dtype("i1"),
    Format.Q4: np.dtype("u1"),
}
GROUPS = {Format.Q8: (32,), Format.Q4: (32, 64, 128)}


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight in host memory: codes and, for q8 and q4, a float16 scale a group of K.

    shape is the logical shape [..., N, K] (or [N] for a vector); arrays are as in `Format`.
    """

    format: Format
    shape: tuple[int, ...]
    codes: Array
    scale: Array | None = None
    zero: Array | None = None
    group: int = 0

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise BadCheckpoint(
                what=f"a {self.format.value} weight of shape {list(self.shape)} was described",
                evidence=problem,
                fix="use the layout of clover_rt.spec.Format; keep a tensor whose K the group "
                "size does not divide in bf16",
                code="CRT-1110",
            )

    def _problem(self) -> str:
        k = self.shape[-1] if self.shape else 1
        lead = self.shape[:-1]
        if self.codes.dtype != self.format.codes_dtype:
            return f"codes are {self.codes.dtype}, not {self.format.codes_dtype}"
        if not self.format.is_quantised:
            if self.codes.shape != self.shape:
                return f"codes have shape {list(self.codes.shape)}"
            return ""
        if self.group not in GROUPS[self.format]:
            return f"group size {self.group} is not one of {list(GROUPS[self.format])}"
        if k % self.group:
            return f"K={k} is not a multiple of the group size {self.group}"
        columns = k if self.format is Format.Q8 else k // 2
        if self.codes.shape != (*lead, columns):
            return f"codes have shape {list(self.codes.shape)}, not {[*lead, columns]}"
        groups = (*lead, k // self.group)
        if self.scale is None or self.scale.shape != groups or self.scale.dtype != np.float16:
            return f"a float16 scale of shape {list(groups)} is needed"
        if self.zero is not None and self.format is Format.Q8:
            return "q8 has no zero point"
        if self.zero is not None and (self.zero.shape != groups or self.zero.dtype != np.uint8):
            return f"zero has shape {list(self.zero.shape)} and type {self.zero.dtype}"
        return ""

    @property
    def nbytes(self) -> int:
        extra = sum(a.nbytes for a in (self.scale, self.zero) if a is not None)
        return self.codes.nbytes + extra

    def __getitem__(self, index: int | slice) -> Weight:
        """Index the first axis of a weight of two axes or more; a view, nothing is copied."""
        codes = self.codes[index]
        scale = None if self.scale is None else self.scale[index]
        zero = None if self.zero is None else self.zero[index]
        shape = (*codes.shape[:-1], self.shape[-1])
        return Weight(self.format, shape, codes, scale, zero, self.group)

    def with_zero(self) -> Weight:
        """Return a q4 weight with zero points: 8 for every group where it has none."""
        if self.zero is not None:
            return self
        assert self.scale is not None, "only a q4 weight has zero points"
        eights = np.full(self.scale.shape, 8, np.uint8)
        return Weight(self.format, self.shape, self.codes, self.scale, eights, self.group)

    def stacked(self) -> Weight:
        """Return the weight as the only one of a stack, [1, ..., N, K]; a view."""
        scale = None if self.scale is None else self.scale[None]
        zero = None if self.zero is None else self.zero[None]
        return Weight(self.format, (1, *self.shape), self.codes[None], scale, zero, self.group)

    def values(self, dtype: npt.DTypeLike = np.float64) -> Array:
        """Return the numbers [..., N, K] in a float type, decoded as `Format` says."""
        if not self.format.is_quantised:
            return self.codes.astype(dtype)
        assert self.scale is not None
        codes = self.codes
        if self.format is Format.Q4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(self.shape)
        grouped = codes.reshape(*self.shape[:-1], -1, self.group).astype(dtype)
        if self.format is Format.Q4:
            grouped -= 8 if self.zero is None else self.zero[..., None].astype(dtype)
        out: Array = grouped * self.scale[..., None].astype(dtype)
        return out.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class HostWeight:
    """A weight that is read when it is touched: pieces over mapped files, joined along axis 0.

    name    the tensor's name in the checkpoint, for messages
    shape   the logical shape of the whole
    pieces  weights whose first axes add up to shape[0]; one for a tensor stored whole, one an
            expert ([1, N, K] each) for split experts, one a head for rows taken out of a tensor
    release called with each part that `slices` is done with, so that its pages can be dropped
    """

    name: str
    format: Format
    shape: tuple[int, ...]
    pieces: Sequence[Weight]
    group: int = 0
    release: Callable[[Weight], None] | None = None

    @property
    def nbytes(self) -> int:
        count = math.prod(self.shape)
        if not self.format.is_quantised:
            return count * self.format.codes_dtype.itemsize
        piece = self.pieces[0]
        return piece.nbytes * count // math.prod(piece.shape)

    @property
    def has_zero(self) -> bool:
        """Has a piece zero points? Then all that `slices` and `whole` return has them."""
        return self.format is Format.Q4 and any(p.zero is not None for p in self.pieces)

    def slices(self, rows: int) -> Iterator[tuple[int, Weight]]:
        """Yield (first row, weight of at most `rows` rows) of axis 0, never over two pieces."""
        start, has_zero = 0, self.has_zero
        for piece in self.pieces:
            for lo in range(0, piece.shape[0], rows):
                part = piece[lo : lo + rows]
                yield start + lo, part.with_zero() if has_zero else part
                if self.release is not None:
                    self.release(part)
            start += piece.shape[0]

    def whole(self) -> Weight:
        """Return the weight as one: the piece itself, or a copy that joins the pieces."""
        if len(self.pieces) == 1:
            return self.pieces[0]

        pieces = [p.with_zero() for p in self.pieces] if self.has_zero else self.pieces

        def join(arrays: list[Array | None]) -> Array | None:
            present = [a for a in arrays if a is not None]
            return np.concatenate(present) if present else None

        codes = join([p.codes for p in pieces])
        assert codes is not None
        scale, zero = join([p.scale for p in pieces]), join([p.zero for p in pieces])
        return Weight(self.format, self.shape, codes, scale, zero, self.group)

    def stacked(self) -> HostWeight:
        """Return the weight as the only one of a stack, [1, ..., N, K]; nothing is copied."""
        pieces = (self.whole().stacked(),)
        shape = (1, *self.shape)
        return HostWeight(self.name, self.format, shape, pieces, self.group, self.release)

    @staticmethod
    def of(weight: Weight, name: str = "weight") -> HostWeight:
        """Wrap a weight that is in memory already."""
        return HostWeight(name, weight.format, weight.shape, (weight,), weight.group)


def encode_q8(values: Array) -> Weight:
    """Round [..., N, K] to q8: symmetric, one float16 scale for 32 values, largest maps to 127."""
    _refuse_odd_groups(values.shape, 32)
    grouped = values.astype(np.float32).reshape(*values.shape[:-1], -1, 32)
    scale = (np.abs(grouped).max(axis=-1) / 127).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)[..., None]
    codes = np.clip(np.rint(grouped / divisor), -127, 127).astype(np.int8)
    return Weight(Format.Q8, values.shape, codes.reshape(values.shape), scale, None, 32)


def encode_q4(values: Array, group: int, *, zero_point: bool = False) -> Weight:
    """Round [..., N, K] to q4; symmetric around code 8, or with a zero point a group."""
    _refuse_odd_groups(values.shape, group)
    grouped = values.astype(np.float32).reshape(*values.shape[:-1], -1, group)
    if zero_point:
        low = np.minimum(grouped.min(axis=-1), 0)
        high = np.maximum(grouped.max(axis=-1), 0)
        scale = ((high - low) / 15).astype(np.float16)
        divisor = np.where(scale == 0, 1, scale).astype(np.float32)
        zero = np.clip(np.rint(-low / divisor), 0, 15).astype(np.uint8)
        offset = zero[..., None].astype(np.float32)
    else:
        extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=-1)[..., None], -1)
        scale = (extreme[..., 0] / -8).astype(np.float16)
        divisor = np.where(scale == 0, 1, scale).astype(np.float32)
        zero = None
        offset = np.float32(8)
    codes = np.clip(np.rint(grouped / divisor[..., None] + offset), 0, 15).astype(np.uint8)
    codes = codes.reshape(values.shape)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return Weight(Format.Q4, values.shape, packed, scale, zero, group)


def _refuse_odd_groups(shape: tuple[int, ...], group: int) -> None:
    if shape[-1] % group:
        raise BadCheckpoint(
            what=f"a tensor of shape {list(shape)} was to be packed in groups of {group}",
            evidence=f"K={shape[-1]} is not a multiple of {group}",
            fix="keep this tensor in bf16, or choose a group size that divides K",
            code="CRT-1111",
        )
