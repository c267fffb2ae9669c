"""Products of rows and weights whose bits do not depend on how many rows there are, or where.

BLAS alone does not give that: it picks another kernel, with another order of sums, by the shape of
the product. Here every product has one of a few fixed shapes: `rows` rows, padded with zeros,
times `columns` rows of the weight, over the whole inner axis. The shapes of one weight are kept
only if they agree: `_agreeing` computes the same rows in each shape, moved to other places and
alone, and drops the shapes that give other bits. Where none is left, rows go through a plain loop
one at a time.

Small shapes also reach the kernels of OpenBLAS that read both operands in place, without packing:
five times faster for a few rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.spec import Format, Weight
from clover_rt_cpu.weights import decode
from clover_rt_cpu.workers import Workers

Array = npt.NDArray[Any]

# two rows alone are slower than four of which two are padding
ROWS = (4, 8, 16, 32)
COLUMNS = (64, 32, 16, 8)
# OpenBLAS packs its operands where rows * columns * inner is above a million, or, where the weight
# is transposed, rows * columns is above 1200
UNPACKED = 950_000
UNPACKED_OUT = 1024
TILE_FLOATS = 1 << 18


@dataclass(frozen=True, slots=True)
class Shape:
    """One fixed product: `rows` rows times `columns` rows of the weight."""

    rows: int
    columns: int


@dataclass(frozen=True)
class Tiles:
    """The fixed shapes for one inner length; any of them gives a row the same bits.

    inner  K, the length of the sums
    height rows of the weight that are converted at a time, a multiple of every `columns`
    """

    inner: int
    shapes: tuple[Shape, ...]
    height: int
    plain: bool
    _cuts: dict[int, tuple[tuple[int, Shape], ...]] = field(default_factory=dict, compare=False)

    @property
    def tallest(self) -> int:
        return self.shapes[-1].rows

    def cut(self, rows: int) -> tuple[tuple[int, Shape], ...]:
        """Return (first row, shape) of the products that cover `rows` rows."""
        if rows not in self._cuts:
            self._cuts[rows] = self._cut(rows)
        return self._cuts[rows]

    def _cut(self, rows: int) -> tuple[tuple[int, Shape], ...]:
        out, at = [], 0
        while at < rows:
            left = rows - at
            fits = [s for s in self.shapes if s.rows <= left]
            covers = [s for s in self.shapes if s.rows >= left]
            shape = fits[-1] if fits else covers[0]
            if covers and 4 * left >= 3 * covers[0].rows:
                shape = covers[0]
            out.append((at, shape))
            at += shape.rows
        return tuple(out)

    def padded(self, rows: int) -> int:
        """Return the rows that the operand's scratch must have for up to `rows` rows."""
        return rows + self.tallest


@lru_cache(maxsize=64)
def row_shapes(inner: int, outputs: int) -> tuple[int, ...]:
    """Return the row counts in which attention may multiply, in rising order.

    Both its products are asked: rows [*, inner] times [inner, outputs] and [*, outputs] back. Where
    no row count is steady it is 1: then every row has a product of its own.
    """
    counts = [n for n in ROWS if _is_unpacked(n, outputs, inner)] or list(ROWS)
    random = np.random.default_rng(inner)
    w = random.standard_normal((outputs, inner)).astype(np.float32)
    agreeing = set(counts)
    for stacked, k in ((w.T[None], inner), (w[None], outputs)):
        x = random.standard_normal((40, k)).astype(np.float32)
        agreeing &= set(_agreeing(counts, [stacked] * len(counts), x))
    return tuple(sorted(agreeing)) or (1,)


@lru_cache(maxsize=256)
def tiles_for(inner: int, outputs: int) -> Tiles:
    """Return the shapes for sums of `inner` products and `outputs` columns.

    The first call for a pair measures which shapes agree: some milliseconds.
    """
    widest = next((c for c in reversed(COLUMNS) if c >= outputs), COLUMNS[0])
    shapes = _shapes(inner, widest)
    random = np.random.default_rng(inner)
    x = random.standard_normal((40, inner)).astype(np.float32)
    w = random.standard_normal((COLUMNS[0], inner)).astype(np.float32)
    stacks = [w.reshape(-1, s.columns, inner).transpose(0, 2, 1) for s in shapes]
    kept = _agreeing([s.rows for s in shapes], stacks, x)
    agreeing = tuple(s for s in shapes if s.rows in kept)
    height = max(COLUMNS[0], TILE_FLOATS // inner // COLUMNS[0] * COLUMNS[0])
    height = min(height, -(-outputs // widest) * widest)
    if not agreeing:
        return Tiles(inner, (Shape(1, widest),), height, True)
    return Tiles(inner, agreeing, height, False)


def _is_unpacked(rows: int, columns: int, inner: int) -> bool:
    out = rows * columns
    return out <= UNPACKED_OUT and out * inner <= UNPACKED


def _shapes(inner: int, widest: int) -> tuple[Shape, ...]:
    columns = [c for c in COLUMNS if c <= widest]
    out = []
    for rows in ROWS:
        fitting = [c for c in columns if _is_unpacked(rows, c, inner)]
        if fitting:
            out.append(Shape(rows, fitting[0]))
    # sums too long for the unpacked kernels: leave them all to the packed one
    if not out or out[-1].rows < 8:
        return tuple(Shape(rows, widest) for rows in ROWS)
    return tuple(out)


def _agreeing(counts: Sequence[int], stacks: Sequence[Array], x: Array) -> list[int]:
    """Return the row counts whose products give the same bits: the most of them that do.

    stacks  the weight as each row count meets it, [n, inner, columns]
    """
    steady = {}
    for rows, stacked in zip(counts, stacks, strict=True):
        found = _steady(rows, stacked, x)
        if found is not None:
            steady[rows] = found
    groups = [
        [rows for rows, found in steady.items() if np.array_equal(found, truth)]
        for truth in steady.values()
    ]
    return max(groups, key=lambda rows: (len(rows), max(rows)), default=[])


def _steady(rows: int, stacked: Array, x: Array) -> Array | None:
    """Return the product, or None where a row's bits depend on its place or its neighbours."""
    whole = _in_tiles(rows, stacked, x)
    for shift in (1, 3, 7):
        moved = _in_tiles(rows, stacked, np.roll(x, shift, axis=0))
        if not np.array_equal(np.roll(moved, -shift, axis=0), whole):
            return None
    for row in range(0, len(x), 9):
        if not np.array_equal(_in_tiles(rows, stacked, x[row : row + 1])[0], whole[row]):
            return None
    return whole


def _in_tiles(rows: int, stacked: Array, x: Array) -> Array:
    out = np.empty((len(x), len(stacked) * stacked.shape[2]), np.float32)
    for at in range(0, len(x), rows):
        tile = np.zeros((rows, x.shape[1]), np.float32)
        live = x[at : at + rows]
        tile[: len(live)] = live
        found = np.matmul(tile, stacked).transpose(1, 0, 2).reshape(rows, -1)
        out[at : at + rows] = found[: len(live)]
    return out


@dataclass(frozen=True, slots=True)
class Span:
    """Rows lo .. hi - 1 of a matrix, which give the outputs from column `first` on."""

    weight: Weight
    lo: int
    hi: int
    first: int


def spans_of(pieces: Sequence[Weight], height: int) -> list[Span]:
    """Cut matrices that lie one above the other into spans of at most `height` rows."""
    out, first = [], 0
    for piece in pieces:
        n = piece.shape[0]
        for lo in range(0, n, height):
            out.append(Span(piece, lo, min(lo + height, n), first + lo))
        first += n
    return out


class Multiplier:
    """One worker's product of rows and weights, with its scratch.

    weights [height, inner], products [height * tallest] float32 scratch
    """

    def __init__(self, tiles: Tiles, weights: Array, products: Array) -> None:
        self.tiles = tiles
        self.weights = weights
        self.products = products
        self._whole = {s: self._operands(s, weights, tiles.height) for s in tiles.shapes}

    @staticmethod
    def floats(tiles: Tiles) -> tuple[tuple[int, int], tuple[int]]:
        """Return the shapes of the two scratch arrays."""
        return (tiles.height, tiles.inner), (tiles.height * tiles.tallest,)

    def _operands(self, shape: Shape, w: Array, rows: int) -> tuple[Array, Array]:
        count = -(-rows // shape.columns)
        stacked = w[: count * shape.columns].reshape(count, shape.columns, -1)
        out = self.products[: count * shape.rows * shape.columns]
        return stacked.transpose(0, 2, 1), out.reshape(count, shape.rows, shape.columns)

    def __call__(
        self, x: Array, rows: int, span: Span, y: Array, residual: Array | None = None
    ) -> None:
        """Write rows of x times a span of the weight to the span's columns of y.

        x [padded(rows), inner] float32, zeros behind the rows; y, residual [rows.., N]
        """
        height = span.hi - span.lo
        codes = span.weight.codes
        full = height == self.tiles.height
        direct = span.weight.format is Format.F32 and height % COLUMNS[0] == 0
        if direct:
            w = codes[span.lo : span.hi]
        else:
            w = self.weights
            decode(span.weight, span.lo, span.hi, w[:height])
        columns = slice(span.first, span.first + height)
        for at, shape in self.tiles.cut(rows):
            if full and not direct:
                stacked, out = self._whole[shape]
            else:
                stacked, out = self._operands(shape, w, height)
            self._product(x[at : at + shape.rows], stacked, out)
            live = slice(at, min(at + shape.rows, rows))
            found = out.transpose(1, 0, 2)[: live.stop - at]
            target = y[live, columns]
            if height == len(out) * shape.columns:
                target = target.reshape(found.shape)
            else:
                found = found.reshape(len(found), -1)[:, :height]
            if residual is None:
                np.copyto(target, found)
            else:
                np.add(found, residual[live, columns].reshape(found.shape), out=target)

    def _product(self, x: Array, stacked: Array, out: Array) -> None:
        if not self.tiles.plain:
            np.matmul(x, stacked, out=out)
            return
        # one row, always the same shape and scratch: the same sums whatever the pass holds
        for w, found in zip(stacked, out, strict=True):
            np.einsum("k,kn->n", x[0], w, out=found[0], optimize=False)


class Product:
    """Rows times one weight, its spans shared among the workers."""

    def __init__(self, workers: Workers, tiles: Tiles, weights: Array, products: Array) -> None:
        self.workers = workers
        self.tiles = tiles
        self._each = [Multiplier(tiles, w, o) for w, o in zip(weights, products, strict=True)]

    @staticmethod
    def shapes(workers: Workers, tiles: Tiles, prefix: str = "") -> dict[str, tuple[int, ...]]:
        """Return the scratch arrays that a Product takes, by name."""
        weights, products = Multiplier.floats(tiles)
        count = workers.count
        return {f"{prefix}weights": (count, *weights), f"{prefix}products": (count, *products)}

    def __call__(
        self,
        x: Array,
        rows: int,
        spans: Sequence[Span],
        y: Array,
        residual: Array | None = None,
    ) -> None:
        """Write x w^T (+ residual) to y for every span; see Multiplier for the operands."""
        left = deque(spans)

        def job(worker: int) -> None:
            multiply = self._each[worker]
            while left:
                try:
                    span = left.popleft()
                except IndexError:
                    return
                multiply(x, rows, span, y, residual)

        work = sum(s.hi - s.lo for s in spans) * self.tiles.inner * max(rows, 4)
        self.workers.run(job, work)


def pad_rows(x: Array, rows: int, padded: Array) -> None:
    """Copy rows of x into the scratch of a product and zero what lies behind them."""
    np.copyto(padded[:rows], x[:rows])
    padded[rows:] = 0
