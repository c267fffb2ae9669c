"""attend: keys and values in tiles of 64 places, the same tiles whatever the pass.

Tile j of a slot holds places 64 j .. 64 j + 63: a page as it lies in the pool, or, from the
segment's position on, rows of the operands put at their places behind those of the page. Products
have the fixed shapes of `products.py`, masked places get a share of exactly 0, and tiles are added
in order. So a row's bits are the same whether a key comes from a page or from an operand, and
whatever rows lie around it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Kind, Segment, Signature
from clover_rt_cpu.kernel import PLAIN_TYPES, Array, CpuKernel, Shapes, table_of, views
from clover_rt_cpu.products import row_shapes

# rows that share one reading of the keys, and the floats that their logits may take
MOST_ROWS = 32
LOGITS = 1 << 22


class Attend(CpuKernel):
    """Let each row attend to its slot's pages and its own segment."""

    types = (*PLAIN_TYPES, "bfloat16")

    def shapes(self, sig: Signature) -> Shapes:
        groups, width = sig["G"], sig["K"]
        each = sig["H"] // groups
        own = (_own_tiles(sig["T"]), PAGE_ROWS, groups * width)
        tall = row_shapes(width, PAGE_ROWS)[-1] + MOST_ROWS * each
        tiles = sig["slot_pages"] + own[0] + 1
        least = groups * (row_shapes(width, PAGE_ROWS)[-1] + each) * PAGE_ROWS
        return {
            "q": (groups, tall, width),
            "sum": (groups, tall, width),
            "part": (groups, tall, width),
            "logits": (max(LOGITS, tiles * least),),
            "own_k": own,
            "own_v": own,
            "page_k": (PAGE_ROWS, groups * width),
            "page_v": (PAGE_ROWS, groups * width),
        }

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        q, k, v, page_table, k_pool, v_pool, y = views(
            operands, "q", "k", "v", "page_table", "k_pool", "v_pool", "y"
        )
        groups, width = sig["G"], sig["K"]
        each = sig["H"] // groups
        heads = q.reshape(-1, groups, each, width)
        outs = y.reshape(-1, groups, each, width)
        room = self.room(sig, scratch)
        sizes = row_shapes(width, PAGE_ROWS)
        scale = np.float32(width) ** np.float32(-0.5)
        direct = k_pool.dtype == np.float32

        def place_own(s: Segment) -> int:
            """Put the segment's own rows at their places; return the first tile they touch."""
            first, offset = divmod(s.position, PAGE_ROWS)
            stop = offset + s.rows
            for tiles, rows, pool in ((room["own_k"], k, k_pool), (room["own_v"], v, v_pool)):
                flat = tiles.reshape(-1, groups * width)
                if offset:
                    page = int(page_table[s.slot, first]) * PAGE_ROWS
                    flat[:offset] = pool[page : page + offset]
                own = rows[s.row0 : s.row0 + s.rows]
                flat[offset:stop] = own if direct else own.astype(pool.dtype)
                flat[stop : -(-stop // PAGE_ROWS) * PAGE_ROWS] = 0
            return first

        def tile(s: Segment, j: int, first: int, name: str, pool: Array) -> Array:
            """Return tile j as [64, G, K] float32."""
            if j >= first:
                found: Array = room["own_" + name][j - first]
            else:
                page = int(page_table[s.slot, j]) * PAGE_ROWS
                found = pool[page : page + PAGE_ROWS]
                if not direct:
                    np.copyto(room["page_" + name], found)
                    found = room["page_" + name]
            shaped: Array = found.reshape(PAGE_ROWS, groups, width)
            return shaped

        def attend(s: Segment, lo: int, n: int, first: int) -> None:
            """Attend from rows lo .. lo + n - 1 of a segment."""
            m = n * each
            size = next((r for r in sizes if r >= m), sizes[-1])
            count = -(-m // size)
            shape = (groups, count, size, width)
            queries, total, part = (
                room[name].reshape(-1)[: groups * count * size * width].reshape(shape)
                for name in ("q", "sum", "part")
            )
            rows = slice(s.row0 + lo, s.row0 + lo + n)
            flat = queries.reshape(groups, count * size, width)
            live = flat[:, :m].reshape(groups, n, each, width)
            np.multiply(heads[rows].transpose(1, 0, 2, 3), scale, out=live)
            flat[:, m:] = 0
            last = s.position + s.rows - 1
            limits = np.full(count * size, last)
            if s.kind is not Kind.PREVIEW:
                limits[:m] = np.repeat(np.arange(s.position + lo, s.position + lo + n), each)
                last = int(limits[m - 1])
            tiles = last // PAGE_ROWS + 1
            lowest = int(limits.min())
            logits = room["logits"][: tiles * groups * count * size * PAGE_ROWS]
            logits = logits.reshape(tiles, groups, count, size, PAGE_ROWS)
            for j in range(tiles):
                keys = tile(s, j, first, "k", k_pool).transpose(1, 2, 0)[:, None]
                np.matmul(queries, keys, out=logits[j])
                if PAGE_ROWS * (j + 1) > lowest + 1:
                    places = np.arange(PAGE_ROWS * j, PAGE_ROWS * (j + 1))
                    hidden = (places > limits[:, None]).reshape(count, size, PAGE_ROWS)
                    np.copyto(logits[j], -np.inf, where=hidden)
            logits -= logits.max(axis=(0, 4))[..., None]
            np.exp(logits, out=logits)
            weights = logits.sum(axis=-1)
            weight = weights[0]
            for j in range(tiles):
                values = tile(s, j, first, "v", v_pool).transpose(1, 0, 2)[:, None]
                if j == 0:
                    np.matmul(logits[j], values, out=total)
                    continue
                np.matmul(logits[j], values, out=part)
                total += part
                weight += weights[j]
            total /= weight[..., None]
            found = total.reshape(groups, count * size, width)[:, :m]
            outs[rows] = found.reshape(groups, n, each, width).transpose(1, 0, 2, 3)

        @np.errstate(all="ignore")
        def step() -> None:
            for s in table.read().segments:
                if s.rows == 0:
                    continue
                first = place_own(s)
                tiles = (s.position + s.rows - 1) // PAGE_ROWS + 1
                fit = LOGITS // (tiles * groups * each * PAGE_ROWS) - sizes[-1] // each
                n = max(1, min(MOST_ROWS, fit))
                for lo in range(0, s.rows, n):
                    attend(s, lo, min(n, s.rows - lo), first)

        return step


def _own_tiles(rows: int) -> int:
    """Return the tiles that `rows` consecutive places may touch."""
    return (rows + PAGE_ROWS - 2) // PAGE_ROWS + 1
