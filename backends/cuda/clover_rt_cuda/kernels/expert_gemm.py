"""expert_gemm: two launches: gate, up and activation into a scratch row a pair, then down.

Few pairs (a capacity of up to 32): one program a pair and 32 rows of the weight, bound by the
bytes of the weights. More pairs: tiles of 16, 32 or 64 pairs of one expert; a program finds its
expert from the offsets that group_rows left on the device. The grid is sized by the capacity, and
programs past the last tile leave. An expert without pairs has no tile, so none of its weights are
read. Sums in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Numerics, Signature
from clover_rt_cuda.kernel import (
    TritonKernel,
    block,
    cdiv,
    dot_type,
    numerics_of,
    room,
    room_bytes,
    sequence,
    table_of,
    view,
    views,
)
from clover_rt_cuda.kernels.linear import inner_block, row_tile
from clover_rt_cuda.kernels.tools import ROWS, row_product, rows_product, silu

FEW_PAIRS = 32
PAIR_BLOCKS = (16, 32, 64)


@triton.jit
def expert_of_place(offsets, place, E, BE: tl.constexpr):
    """Return the expert whose part holds a place of `order`; E where none does."""
    e = tl.arange(0, BE)
    ends = tl.load(offsets + 1 + e, mask=e < E, other=0)
    return tl.sum(((e < E) & (ends <= place)).to(tl.int32), 0)


@triton.jit
def expert_of_tile(offsets, tile, E, BE: tl.constexpr, BP: tl.constexpr):
    """Return (expert, first place, end of its part) of a tile of BP places; expert E: none."""
    e = tl.arange(0, BE)
    start = tl.load(offsets + e, mask=e < E, other=0)
    end = tl.load(offsets + 1 + e, mask=e < E, other=0)
    tiles = (end - start + BP - 1) // BP
    last = tl.cumsum(tiles, 0)
    expert = tl.sum(((e < E) & (last <= tile)).to(tl.int32), 0)
    own = e == expert
    inside = tile - tl.sum(tl.where(own, last - tiles, 0), 0)
    first = tl.sum(tl.where(own, start, 0), 0) + inside * BP
    return expert, first, tl.sum(tl.where(own, end, 0), 0)


@triton.jit
def pairs_of_tile(
    order, offsets, rows, tile, E, BE: tl.constexpr, BP: tl.constexpr
):  # fmt: skip
    """Return (expert, pairs [BP], which of them are real); without an order pairs are rows."""
    if order is None:
        expert, pair = tile * 0, tile * BP + tl.arange(0, BP)
        ok = pair < rows
    else:
        expert, first, end = expert_of_tile(offsets, tile, E, BE, BP)
        place = first + tl.arange(0, BP)
        ok = (place < end) & (expert < E)
        pair = tl.load(order + place, mask=ok, other=0)
    return expert, pair, ok


@triton.jit
def pair_of_place(order, offsets, rows, place, E, BE: tl.constexpr):
    """Return (expert, pair, is it real) of a place."""
    if order is None:
        expert, pair, ok = place * 0, place, place < rows
    else:
        expert = expert_of_place(offsets, place, E, BE)
        ok = expert < E
        pair = tl.load(order + place, mask=ok, other=0)
    return expert, pair, ok


@triton.jit
def hidden_line(
    x, row, norm, eps, hidden, pair, expert, tile,
    gate, gate_scale, gate_zero, up, up_scale, up_zero, D, F,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, UP: tl.constexpr, UP_GROUP: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write BN hidden numbers of one pair; norm: None, or as in `row_product`."""
    f = tile * BN + tl.arange(0, BN)
    ok = f < F
    base = expert.to(tl.int64) * F + f
    g, squares = row_product(
        x, row, norm, gate, gate_scale, gate_zero, base, ok, D, FORMAT, GROUP, BN, BK
    )
    u, _ = row_product(x, row, norm, up, up_scale, up_zero, base, ok, D, UP, UP_GROUP, BN, BK)
    if norm is not None:
        root = tl.sqrt(squares / D + eps)
        g, u = g / root, u / root
    tl.store(hidden + pair.to(tl.int64) * F + f, silu(g) * u, mask=ok)


@triton.jit
def hidden_tile(
    x, row, ok, norm, eps, hidden, pair, expert, tile,
    gate, gate_scale, gate_zero, up, up_scale, up_zero, D, F,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, UP: tl.constexpr, UP_GROUP: tl.constexpr,
    TYPE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write BN hidden numbers of each of BP pairs of one expert."""
    f = tile * BN + tl.arange(0, BN)
    f_ok = f < F
    base = expert.to(tl.int64) * F + f
    g, squares = rows_product(
        x, row, ok, norm, gate, gate_scale, gate_zero, base, f_ok, D,
        FORMAT, GROUP, TYPE, BP, BN, BK,
    )  # fmt: skip
    u, _ = rows_product(
        x, row, ok, norm, up, up_scale, up_zero, base, f_ok, D, UP, UP_GROUP, TYPE, BP, BN, BK
    )
    if norm is not None:
        root = tl.sqrt(squares / D + eps)
        g, u = g / root[:, None], u / root[:, None]
    place = pair.to(tl.int64)[:, None] * F + f[None, :]
    tl.store(hidden + place, silu(g) * u, mask=ok[:, None] & f_ok[None, :])


@triton.jit
def down_tile(
    hidden, pair, ok, y, expert, tile, down, scale, zero, D, F,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write BN columns of each of BP pairs of one expert."""
    d = tile * BN + tl.arange(0, BN)
    d_ok = d < D
    row = pair.to(tl.int64)
    base = expert.to(tl.int64) * D + d
    acc, _ = rows_product(
        hidden, row, ok, None, down, scale, zero, base, d_ok, F, FORMAT, GROUP, TYPE, BP, BN, BK
    )
    tl.store(y + row[:, None] * D + d[None, :], acc, mask=ok[:, None] & d_ok[None, :])


@triton.jit
def hidden_row(
    table, order, offsets, x, hidden,
    gate, gate_scale, gate_zero, up, up_scale, up_zero, E, R, D, F,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, UP: tl.constexpr, UP_GROUP: tl.constexpr,
    BE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.load(table + ROWS)
    if tl.program_id(1) >= rows * R:
        return
    expert, pair, real = pair_of_place(order, offsets, rows, tl.program_id(1), E, BE)
    if real:
        hidden_line(
            x, (pair // R).to(tl.int64), None, 0.0, hidden, pair, expert, tl.program_id(0),
            gate, gate_scale, gate_zero, up, up_scale, up_zero, D, F,
            FORMAT, GROUP, UP, UP_GROUP, BN, BK,
        )  # fmt: skip


@triton.jit
def down_row(
    table, order, offsets, hidden, y, down, scale, zero, E, R, D, F,
    FORMAT: tl.constexpr, GROUP: tl.constexpr,
    BE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.load(table + ROWS)
    if tl.program_id(1) >= rows * R:
        return
    expert, pair, real = pair_of_place(order, offsets, rows, tl.program_id(1), E, BE)
    if real:
        d = tl.program_id(0) * BN + tl.arange(0, BN)
        ok = d < D
        row = pair.to(tl.int64)
        base = expert.to(tl.int64) * D + d
        acc, _ = row_product(
            hidden, row, None, down, scale, zero, base, ok, F, FORMAT, GROUP, BN, BK
        )
        tl.store(y + row * D + d, acc, mask=ok)


@triton.jit
def hidden_rows(
    table, order, offsets, x, hidden,
    gate, gate_scale, gate_zero, up, up_scale, up_zero, E, R, D, F,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, UP: tl.constexpr, UP_GROUP: tl.constexpr,
    TYPE: tl.constexpr, BE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.load(table + ROWS)
    if rows == 0:
        return
    expert, pair, ok = pairs_of_tile(order, offsets, rows, tl.program_id(1), E, BE, BP)
    if tl.max(ok.to(tl.int32), 0) != 0:
        hidden_tile(
            x, (pair // R).to(tl.int64), ok, None, 0.0, hidden, pair, expert, tl.program_id(0),
            gate, gate_scale, gate_zero, up, up_scale, up_zero, D, F,
            FORMAT, GROUP, UP, UP_GROUP, TYPE, BP, BN, BK,
        )  # fmt: skip


@triton.jit
def down_rows(
    table, order, offsets, hidden, y, down, scale, zero, E, R, D, F,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr,
    BE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.load(table + ROWS)
    if rows == 0:
        return
    expert, pair, ok = pairs_of_tile(order, offsets, rows, tl.program_id(1), E, BE, BP)
    if tl.max(ok.to(tl.int32), 0) != 0:
        down_tile(
            hidden, pair, ok, y, expert, tl.program_id(0), down, scale, zero, D, F,
            FORMAT, GROUP, TYPE, BP, BN, BK,
        )  # fmt: skip


class ExpertGemm(TritonKernel):
    """Run each expert's gated network on the rows that chose it."""

    def numerics(self, sig: Signature) -> Numerics:
        return Numerics.F32 if _pairs(sig) <= FEW_PAIRS else numerics_of(sig)

    def scratch(self, sig: Signature) -> int:
        return room_bytes(_pairs(sig) * sig["F"])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        x, y = views(operands, "x", "y")
        index: Any = (None, None)
        if sig.has("order"):
            index = (view(operands["order"]), view(operands["offsets"]))
        pairs, width, inner = _pairs(sig), sig["D"], sig["F"]
        (hidden,) = room(scratch, pairs * inner)
        gate, up, down = (prepared[name] for name in ("gate", "up", "down"))
        sizes = (sig["E"], sig["R"], width, inner)
        table = table_of(operands)
        first = (table, *index, x, hidden, *gate.arrays, *up.arrays, *sizes)
        second = (table, *index, hidden, y, *down.arrays, *sizes)
        inward = {**gate.constants, "UP": up.format, "UP_GROUP": up.group, "BE": block(sig["E"], 1)}
        outward = {**down.constants, "BE": block(sig["E"], 1)}
        if pairs <= FEW_PAIRS:
            in_tile, out_tile = (self.tile("row", sig, row_tile(k)) for k in (width, inner))
            in_grid, out_grid = (
                (cdiv(n, tile["BN"]), pairs) for n, tile in ((inner, in_tile), (width, out_tile))
            )
            steps = [
                self.launcher(sig, hidden_row, in_grid, *first, **inward, **in_tile),
                self.launcher(sig, down_row, out_grid, *second, **outward, **out_tile),
            ]
            return sequence(steps)
        tile = self.tile("pairs", sig, pair_tile(sig, pairs))
        meta = {**tile, "TYPE": dot_type(sig)}
        tiles = most_tiles(pairs, sig["E"], tile["BP"])
        steps = [
            self.launcher(
                sig, hidden_rows, (cdiv(inner, tile["BN"]), tiles), *first, **inward, **meta
            ),
            self.launcher(
                sig, down_rows, (cdiv(width, tile["BN"]), tiles), *second, **outward, **meta
            ),
        ]
        return sequence(steps)


def pair_tile(sig: Signature, pairs: int) -> dict[str, int]:
    """Return the tile of several pairs: about as many as an expert has when all are used."""
    each = min(cdiv(pairs, sig["E"]), sig["T"])
    most = next((b for b in PAIR_BLOCKS if b >= each), PAIR_BLOCKS[-1])
    return {"BP": most, "BN": 64, "BK": inner_block(sig)}


def most_tiles(pairs: int, experts: int, size: int) -> int:
    """Return the most tiles that pairs can need: one more an expert than whole tiles."""
    return min(pairs, experts) + pairs // size


def _pairs(sig: Signature) -> int:
    return int(sig["T"] * sig["R"])
