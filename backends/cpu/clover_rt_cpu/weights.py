"""Weights as kernels read them: converted to float32 a few rows at a time, never kept twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.spec import Format, HostWeight, Weight

Array = npt.NDArray[Any]
JOIN_BYTES = 64 * 1024 * 1024
PIECE_ROWS = 64


def vector(weight: HostWeight) -> Array:
    """Return a small weight as float32, whole."""
    return np.ascontiguousarray(weight.whole().values(np.float32))


def matrices(weight: HostWeight) -> list[Weight]:
    """Return a weight of one matrix [N, K] as matrices one above the other, over mapped memory.

    Small pieces that are no multiple of the product's tile are joined, so that tiles are full.
    """
    pieces = list(weight.pieces)
    ragged = any(p.shape[0] % PIECE_ROWS for p in pieces[:-1])
    if len(pieces) > 1 and ragged and weight.nbytes < JOIN_BYTES:
        return [weight.whole()]
    return pieces


def experts(weight: HostWeight) -> list[Weight]:
    """Return a weight [E, N, K] as E matrices over mapped memory."""
    return [piece[i] for piece in weight.pieces for i in range(piece.shape[0])]


def decode(weight: Weight, lo: int, hi: int, out: Array) -> None:
    """Write rows lo .. hi - 1 of a matrix as float32 into out [hi - lo, K]."""
    codes = weight.codes[lo:hi]
    if not weight.format.is_quantised:
        np.copyto(out, codes)
        return
    assert weight.scale is not None
    if weight.format is Format.Q8:
        np.copyto(out, codes)
    else:
        np.copyto(out[:, 0::2], codes & 15)
        np.copyto(out[:, 1::2], codes >> 4)
    grouped = out.reshape(hi - lo, -1, weight.group)
    if weight.format is Format.Q4:
        grouped -= 8 if weight.zero is None else weight.zero[lo:hi, :, None]
    grouped *= weight.scale[lo:hi].astype(np.float32)[:, :, None]


def decode_rows(pieces: Sequence[Weight], rows: Array, out: Array) -> None:
    """Write chosen rows of matrices one above the other as float32 into out [len(rows), K].

    Rows outside the matrices become zeros.
    """
    start = 0
    out[:] = 0
    for piece in pieces:
        here = np.flatnonzero((rows >= start) & (rows < start + piece.shape[0]))
        for i in here.tolist():
            row = int(rows[i]) - start
            decode(piece, row, row + 1, out[i : i + 1])
        start += piece.shape[0]
