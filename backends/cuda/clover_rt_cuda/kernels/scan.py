"""The gated delta rule on one head's memory: row by row, and in chunks.

S [K, V] float32; the columns of the values are independent of each other, so a program takes BV of
them. Row by row the memory lies in registers. In chunks it stays in memory and passes by 16 of its
rows at a time: products of float32 numbers have no matrix unit, and a thread would have to hold
whole rows of both sides.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unit_row(x):
    """A row divided by the root of its sum of squares."""
    return x / tl.sqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def scan_row(state, k, v, g, beta):
    """Return the memory after one row with unit key k [BK]; read it with q afterwards."""
    state = state * tl.exp(g)
    read = tl.sum(state * k[:, None], 0)
    return state + k[:, None] * (beta * (v - read))[None, :]


@triton.jit
def product(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def inverse(a, C: tl.constexpr, LEVELS: tl.constexpr):
    """Return (I + a)^-1 of a strictly lower triangular a [C, C], by halves.

    With the inverse T of the diagonal blocks of one size, that of blocks twice as large is
    T - T b T, where b is the part of a that lies in the larger blocks only.
    """
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    found = tl.where(i == j, 1.0, 0.0) - tl.where((i == j + 1) & (i % 2 == 1), a, 0.0)
    for level in tl.static_range(1, LEVELS):
        size = 2**level
        inside = (i // (2 * size) == j // (2 * size)) & (i // size != j // size)
        found -= product(product(found, tl.where(inside, a, 0.0)), found)
    return found


@triton.jit
def read_memory(
    q, k, step, ok, memory, v, v_ok, K, V, C: tl.constexpr, BX: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """Return (q k^T, k k^T, q S, k S) of a chunk of unit rows q and k.

    q, k  pointers to the first column of raw rows [C], `step` [C] apart; memory: of [K, V]
    """
    x = tl.arange(0, BX)
    queries, keys = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    read_q, read_k = tl.zeros((C, BV), tl.float32), tl.zeros((C, BV), tl.float32)
    q_square, k_square = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for x0 in range(0, K, BX):
        here = (x0 + x < K)[None, :] & ok[:, None]
        place = step[:, None] + (x0 + x)[None, :]
        own_q = tl.load(q + place, mask=here, other=0)
        own_k = tl.load(k + place, mask=here, other=0)
        q_square += tl.sum(own_q * own_q, 1)
        k_square += tl.sum(own_k * own_k, 1)
        queries += product(own_q, tl.trans(own_k))
        keys += product(own_k, tl.trans(own_k))
        rows = (x0 + x)[:, None] * V + v[None, :]
        some = (x0 + x < K)[:, None] & v_ok[None, :]
        part = tl.load(memory + rows, mask=some, other=0)
        read_q += product(own_q, part)
        read_k += product(own_k, part)
    q_root = 1.0 / tl.sqrt((q_square + 1e-6) * K)
    k_root = 1.0 / tl.sqrt(k_square + 1e-6)
    queries *= q_root[:, None] * k_root[None, :]
    keys *= k_root[:, None] * k_root[None, :]
    return queries, keys, read_q * q_root[:, None], read_k * k_root[:, None], k_root


@triton.jit
def write_memory(
    k, step, ok, memory, target, shrunk, written, v, v_ok, K, V, BX: tl.constexpr
):  # fmt: skip
    """Store shrunk * memory + k^T written [C, BV], k raw rows as in `read_memory`."""
    x = tl.arange(0, BX)
    for x0 in range(0, K, BX):
        here = (x0 + x < K)[None, :] & ok[:, None]
        own_k = tl.load(k + step[:, None] + (x0 + x)[None, :], mask=here, other=0)
        rows = (x0 + x)[:, None] * V + v[None, :]
        some = (x0 + x < K)[:, None] & v_ok[None, :]
        part = tl.load(memory + rows, mask=some, other=0) * shrunk
        tl.store(target + rows, part + product(tl.trans(own_k), written), mask=some)
    # other threads of this program read what this one has written
    tl.debug_barrier()


@triton.jit
def scan_chunk(
    q, k, step, ok, memory, target, moves, value, g, beta, v, v_ok, K, V,
    C: tl.constexpr, LEVELS: tl.constexpr, BX: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Return what C rows read [C, BV]; where `moves`, store the memory after them to target.

    value [C, BV]; rows past the end have v = g = beta = 0, and no key
    """
    queries, keys, read_q, read_k, k_root = read_memory(
        q, k, step, ok, memory, v, v_ok, K, V, C, BX, BV
    )
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    seen = (i >= j).to(tl.float32)
    # the decay between two rows is a sum of its own: a difference of two long sums loses digits
    between = product(seen, tl.where(i > j, g[:, None], 0.0))
    decay = tl.where(i >= j, tl.exp(tl.where(i >= j, between, 0.0)), 0.0)
    since = tl.exp(tl.cumsum(g, 0))
    a = tl.where(i > j, keys * decay * beta[:, None], 0.0)
    right = beta[:, None] * value - (beta * since)[:, None] * read_k
    written = product(inverse(a, C, LEVELS), right)
    out = since[:, None] * read_q + product(queries * decay, written)
    if moves:
        rest = tl.exp(tl.sum(tl.where(i > j, g[:, None], 0.0), 0))
        kept = written * (rest * k_root)[:, None]
        write_memory(k, step, ok, memory, target, tl.exp(tl.sum(g, 0)), kept, v, v_ok, K, V, BX)
    return out
