"""What the kernels share on the device: rounding, products, tiles of a weight in any format.

Sums are float32. A product in float32 is IEEE; one in bfloat16 rounds both sides first. Offsets
into weights, caches and states are 64 bits wide.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

# words of StepParams
ROWS, SEGMENTS, WANTED = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
PAGE_DELTAS, COUNT_DELTAS, ADVANCES = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)
# words of a segment: kind, slot, row0, rows, position
SEGMENT = tl.constexpr(8)
COMMIT, PREVIEW, VERIFY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def sigmoid(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def softplus(x):
    """log(1 + e^x): the logarithm of a rounded sum, and what the rounding lost."""
    e = tl.exp(-tl.abs(x))
    total = 1.0 + e
    lost = e - (total - 1.0)
    return tl.maximum(x, 0.0) + (tl.log(total) + lost / total)


@triton.jit
def operand(x):
    """Return numbers as they lie in memory for a product: bfloat16 as it is, others in float32.

    Only the interpreter, which cannot multiply it, gets bfloat16 in float32 too.
    """
    out = x
    if INTERPRETED or x.dtype != tl.bfloat16:
        out = x.to(tl.float32)
    return out


@triton.jit
def rounded(x, TYPE: tl.constexpr):
    """Return numbers as TYPE, rounded to nearest even; x is float32, or what `operand` returns.

    The interpreter cuts bits off where a card rounds, and multiplies the bits of bfloat16 numbers
    as integers; there they are rounded by hand and stay float32.
    """
    if x.dtype == TYPE:
        out = x
    elif INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        even = bits + 0x7FFF + ((bits >> 16) & 1)
        out = tl.where(x == x, (even & 0xFFFF0000).to(tl.float32, bitcast=True), x)
    else:
        out = x.to(TYPE)
    return out


@triton.jit
def narrowed(x, TYPE: tl.constexpr):
    """Return float32 numbers in the element type TYPE, for a store."""
    return rounded(x, TYPE).to(TYPE)


@triton.jit
def dot(a, b, acc, TYPE: tl.constexpr):
    """Return acc + a b of tiles [M, K] and [K, N], rounded to TYPE and multiplied in it."""
    return tl.dot(rounded(a, TYPE), rounded(b, TYPE), acc, input_precision="ieee")


@triton.jit
def spread(values, N: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    """Return [N, GROUPS] as [N, GROUPS * WIDTH], each number WIDTH times."""
    wide = tl.broadcast_to(tl.expand_dims(values, 2), (N, GROUPS, WIDTH))
    return tl.reshape(wide, (N, GROUPS * WIDTH))


@triton.jit
def group_tile(
    table, rows, rows_ok, k0, K,
    GROUP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return a table of one number a group, for columns k0 .. k0 + BK - 1, as [BN, WIDTH].

    WIDTH  BK, or half of it where two columns lie in a byte
    """
    GROUPS: tl.constexpr = (BK + GROUP - 1) // GROUP
    groups = k0 // GROUP + tl.arange(0, GROUPS)
    count = K // GROUP
    ok = rows_ok[:, None] & (groups < count)[None, :]
    own = tl.load(table + rows[:, None] * count + groups[None, :], mask=ok, other=0)
    return spread(own.to(tl.float32), BN, GROUPS, WIDTH // GROUPS)


@triton.jit
def weight_tile(
    codes, scale, rows, rows_ok, k0, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return columns k0 .. k0 + BK - 1 of rows [BN] of a weight that is not q4, as an operand."""
    k = k0 + tl.arange(0, BK)
    ok = rows_ok[:, None] & (k < K)[None, :]
    tile = operand(tl.load(codes + rows[:, None] * K + k[None, :], mask=ok, other=0))
    if FORMAT == "q8":
        tile *= group_tile(scale, rows, rows_ok, k0, K, GROUP, BN, BK, BK)
    return tile


@triton.jit
def q4_tiles(
    codes, scale, zero, rows, rows_ok, k0, K,
    GROUP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return the even and the odd columns [BN, BK / 2] of a q4 weight, in float32."""
    pairs = k0 // 2 + tl.arange(0, BK // 2)
    ok = rows_ok[:, None] & (pairs < K // 2)[None, :]
    tile = tl.load(codes + rows[:, None] * (K // 2) + pairs[None, :], mask=ok, other=0)
    even, odd = (tile & 15).to(tl.float32), (tile >> 4).to(tl.float32)
    factor = group_tile(scale, rows, rows_ok, k0, K, GROUP, BN, BK, BK // 2)
    if zero is None:
        even, odd = even - 8.0, odd - 8.0
    else:
        middle = group_tile(zero, rows, rows_ok, k0, K, GROUP, BN, BK, BK // 2)
        even, odd = even - middle, odd - middle
    return even * factor, odd * factor


@triton.jit
def weight_at(
    codes, scale, zero, rows, k, ok, K, FORMAT: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Return single numbers of a weight in float32; rows and k broadcast to the shape of ok."""
    if FORMAT == "q4":
        byte = tl.load(codes + rows * (K // 2) + k // 2, mask=ok, other=0)
        value = tl.where(k % 2 == 0, byte & 15, byte >> 4).to(tl.float32)
        if zero is None:
            value -= 8.0
        else:
            middle = tl.load(zero + rows * (K // GROUP) + k // GROUP, mask=ok, other=0)
            value -= middle.to(tl.float32)
    else:
        value = tl.load(codes + rows * K + k, mask=ok, other=0).to(tl.float32)
    if FORMAT == "q4" or FORMAT == "q8":
        factor = tl.load(scale + rows * (K // GROUP) + k // GROUP, mask=ok, other=0)
        value *= factor.to(tl.float32)
    return value


@triton.jit
def add_product(
    acc, tile, codes, scale, zero, w_rows, w_ok, k0, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return acc [BM, BN] plus a tile [BM, BK] times columns k0 .. k0 + BK - 1 of a weight."""
    if FORMAT == "q4":
        left, right = tl.split(tl.reshape(tile, (BM, BK // 2, 2)))
        even, odd = q4_tiles(codes, scale, zero, w_rows, w_ok, k0, K, GROUP, BN, BK)
        acc = dot(left, tl.trans(even), acc, TYPE)
        acc = dot(right, tl.trans(odd), acc, TYPE)
    else:
        other = weight_tile(codes, scale, w_rows, w_ok, k0, K, FORMAT, GROUP, BN, BK)
        acc = dot(tile, tl.trans(other), acc, TYPE)
    return acc


@triton.jit
def add_line(
    acc, tile, codes, scale, zero, w_rows, w_ok, k0, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return acc plus the products, not yet summed, of one row's columns with those of a weight."""
    if FORMAT == "q4":
        left, right = tl.split(tl.reshape(tile, (BK // 2, 2)))
        even, odd = q4_tiles(codes, scale, zero, w_rows, w_ok, k0, K, GROUP, BN, BK)
        acc += even * left[None, :] + odd * right[None, :]
    else:
        other = weight_tile(codes, scale, w_rows, w_ok, k0, K, FORMAT, GROUP, BN, BK)
        acc += other.to(tl.float32) * tile[None, :]
    return acc


@triton.jit
def rows_product(
    x, x_rows, x_ok, norm, codes, scale, zero, w_rows, w_ok, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return x w^T [BM, BN] of rows x_rows of x and w_rows of a weight, and sums of squares [BM].

    norm  None, or numbers [K] that x is multiplied with first; only then are squares summed
    """
    acc = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        ok = x_ok[:, None] & (k < K)[None, :]
        tile = tl.load(x + x_rows[:, None] * K + k[None, :], mask=ok, other=0)
        if norm is not None:
            squares += tl.sum(tile * tile, 1)
            tile *= tl.load(norm + k, mask=k < K, other=0)[None, :]
        acc = add_product(
            acc, tile, codes, scale, zero, w_rows, w_ok, k0, K, FORMAT, GROUP, TYPE, BM, BN, BK
        )
    return acc, squares


@triton.jit
def row_product(
    x, row, norm, codes, scale, zero, w_rows, w_ok, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return x w^T [BN] of one row of x in float32, and its sum of squares; as `rows_product`."""
    HALF: tl.constexpr = BK // 2 if FORMAT == "q4" else BK
    acc = tl.zeros((BN, HALF), tl.float32)
    squares = tl.zeros((BK,), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tile = tl.load(x + row * K + k, mask=k < K, other=0)
        if norm is not None:
            squares += tile * tile
            tile *= tl.load(norm + k, mask=k < K, other=0)
        acc = add_line(acc, tile, codes, scale, zero, w_rows, w_ok, k0, K, FORMAT, GROUP, BN, BK)
    return tl.sum(acc, 1), tl.sum(squares, 0)


@triton.jit
def gated_rows_product(
    o, gate, x_rows, x_ok, norm, eps, V, codes, scale, zero, w_rows, w_ok, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return gated_norm(o, gate) w^T [BM, BN], head by head; BK divides V, the columns of a head.

    The root of a head is a factor of its part of the sum.
    """
    acc = tl.zeros((BM, BN), tl.float32)
    for head in range(0, K, V):
        part = tl.zeros((BM, BN), tl.float32)
        squares = tl.zeros((BM,), tl.float32)
        for x0 in range(0, V, BK):
            x = x0 + tl.arange(0, BK)
            place = x_rows[:, None] * K + (head + x)[None, :]
            tile = tl.load(o + place, mask=x_ok[:, None], other=0)
            squares += tl.sum(tile * tile, 1)
            opens = silu(tl.load(gate + place, mask=x_ok[:, None], other=0))
            tile = tile * opens * tl.load(norm + x)[None, :]
            part = add_product(
                part, tile, codes, scale, zero, w_rows, w_ok, head + x0, K,
                FORMAT, GROUP, TYPE, BM, BN, BK,
            )  # fmt: skip
        acc += part / tl.sqrt(squares / V + eps)[:, None]
    return acc


@triton.jit
def gated_row_product(
    o, gate, row, norm, eps, V, codes, scale, zero, w_rows, w_ok, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return gated_norm(o, gate) w^T [BN] of one row, as `gated_rows_product`."""
    HALF: tl.constexpr = BK // 2 if FORMAT == "q4" else BK
    acc = tl.zeros((BN, HALF), tl.float32)
    for head in range(0, K, V):
        part = tl.zeros((BN, HALF), tl.float32)
        squares = tl.zeros((BK,), tl.float32)
        for x0 in range(0, V, BK):
            x = x0 + tl.arange(0, BK)
            tile = tl.load(o + row * K + head + x)
            squares += tile * tile
            tile = tile * silu(tl.load(gate + row * K + head + x)) * tl.load(norm + x)
            part = add_line(
                part, tile, codes, scale, zero, w_rows, w_ok, head + x0, K, FORMAT, GROUP, BN, BK
            )
        acc += part / tl.sqrt(tl.sum(squares, 0) / V + eps)
    return tl.sum(acc, 1)
