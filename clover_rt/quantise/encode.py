"""Numbers to codes and scales of least squared error, group by group.

A few scales are tried for each group: those that map its extreme to a code near the end of the
range, each improved once by least squares. The best is rounded to float16, and then the codes are
chosen. The plain scale, extreme / -8 for q4 and extreme / 127 for q8, is compared at the end and
kept where it is as good, so that the error is never above that of plain rounding, and numbers that
codes and a scale hold exactly come back as they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.quantise.native import TRIES, native
from clover_rt.spec import Format

Array = npt.NDArray[Any]
# codes that the extreme of a group is mapped to, the plain one first: below -8 (or above 127) the
# extreme is cut, which pays where it stands alone; more tries gain less than 0.2 % of the error
Q4_TRIES = np.array([-8, *-np.arange(7, 10.6, 0.2), *np.arange(7, 8.7, 0.4)], np.float32)
Q8_TRIES = np.array([127, *np.linspace(120, 127.6, 23)], np.float32)
# numbers at a time: as float32 they stay in a core's cache
BLOCK = 1 << 16


class BadNumber(Exception):
    """A number that has no code: `at` is its place in the flattened array."""

    def __init__(self, at: int, value: float) -> None:
        super().__init__()
        self.at = at
        self.value = value


class Encoder:
    """Turns rows of numbers into codes and scales of one format."""

    def __init__(self, storage: Format, group: int) -> None:
        """storage is q4 or q8; group divides the rows' length."""
        self.group = group
        self.per_byte = 2 if storage is Format.Q4 else 1
        self._codes_dtype = storage.codes_dtype
        is_q4 = storage is Format.Q4
        self._tries = Q4_TRIES if is_q4 else Q8_TRIES
        self._positive = not is_q4
        low, high = (-8, 7) if is_q4 else (-127, 127)
        self._native = native(group, low, high, is_q4)

    def encode(self, rows: Array) -> tuple[Array, Array]:
        """Return codes [R, K or K / 2] and float16 scales [R, K / group] of numbers [R, K].

        Raises BadNumber for one that is not finite or too large for a float16 scale.
        """
        count, k = rows.shape
        codes = np.empty((count, k // self.per_byte), self._codes_dtype)
        scale = np.empty((count, k // self.group), np.float16)
        step = max(1, BLOCK // k)
        for lo in range(0, count, step):
            part = slice(lo, min(lo + step, count))
            try:
                scale[part] = self._block(floats(rows[part]), codes[part])
            except BadNumber as bad:
                raise BadNumber(lo * k + bad.at, bad.value) from None
        return codes, scale

    def _block(self, values: Array, codes: Array) -> Array:
        finite = np.isfinite(values)
        if not finite.all():
            raise _bad(values, ~finite)
        groups = values.size // self.group
        plain, best, chosen = np.empty((3, groups), np.float32)
        at = values.ctypes.data
        tries = self._tries
        fours = len(tries) // TRIES
        self._native.search(
            at, groups, tries.ctypes.data, fours, plain.ctypes.data, best.ctypes.data
        )
        if self._positive:
            plain, best = np.abs(plain), np.abs(best)
        with np.errstate(over="ignore"):
            plain, best = (x.astype(np.float16).astype(np.float32) for x in (plain, best))
        if not np.isfinite(plain).all():
            grouped = np.abs(values.reshape(groups, -1))
            raise _bad(values, np.isinf(plain)[:, None] & (grouped == grouped.max(1)[:, None]))
        self._native.codes(
            at, groups, plain.ctypes.data, best.ctypes.data, chosen.ctypes.data, codes.ctypes.data
        )
        return chosen.astype(np.float16).reshape(values.shape[0], -1)


def floats(rows: Array) -> Array:
    """Return a dense float32 copy."""
    if rows.dtype == Format.BF16.codes_dtype:
        # the upper half of a float32; many times faster than a conversion number by number
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.array(rows, np.float32, order="C")


def _bad(values: Array, wrong: Array) -> BadNumber:
    at = int(np.argmax(wrong))
    return BadNumber(at, float(values.reshape(-1)[at]))
