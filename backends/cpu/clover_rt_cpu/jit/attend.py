"""attend: pages of 64 places, each read once for all query heads and up to 32 rows.

Places are cut at absolute multiples of 64 into tiles and of 512 into splits. A split is worked
through from nothing, tile by tile with a running maximum, or with AMX as a whole with one maximum;
a row's splits are then merged in order.
A tile or split that a row does not see changes none of its bits, so these depend neither on the
other rows, nor on whether a key is in a page or among the operands, nor on who does which split.

Where there are few rows the splits are dealt out and merged in a second step; many rows are dealt
out themselves, and each item merges its splits as it goes.
    record of a query and split: sum [K], then 16 floats of which three are used: maximum,
    sum of e^, and what the sum was last to be multiplied with
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Numerics, Signature
from clover_rt_cpu.jit.attend_code import QUERIES, SPLIT, Kernel
from clover_rt_cpu.jit.attend_pairs import Pairs
from clover_rt_cpu.jit.attend_tiles import TILE, Tiles
from clover_rt_cpu.jit.kernel import PLAIN_TYPES, JitKernel, address, addresses, padded
from clover_rt_cpu.jit.table import offsets
from clover_rt_cpu.jit.values import LANES

MOST_PARTS = 256 << 20
"""Bytes of records up to which splits are dealt out."""


@dataclass(frozen=True)
class Sizes:
    """Fixed numbers of one signature.

    width  numbers of a head, filled up with zeros to whole vectors
    held   tiles of keys, and of own keys, that a thread has room for at a time
    """

    rows: int
    queries: int
    width: int
    splits: int
    is_split: bool
    parts_bytes: int
    held: int

    @staticmethod
    def of(sig: Signature, kind: type[Kernel], tile: int) -> Sizes:
        step = 2 * LANES if sig.dtype("k_pool").itemsize == 2 else LANES
        heads, width = sig["H"], -(-sig["K"] // step) * step
        each = heads // sig["G"]
        rows = max(1, min(QUERIES // each, sig["T"]))
        queries = -(-rows * each // tile) * tile
        splits = -(-(sig["slot_pages"] * PAGE_ROWS + sig["T"]) // SPLIT)
        parts = splits * sig["T"] * heads * (width + LANES) * 4
        return Sizes(rows, queries, width, splits, parts <= MOST_PARTS, parts, kind.held)

    @property
    def thread_parts(self) -> tuple[int, ...]:
        """Return the bytes of a thread's memory: q, keys, own keys, own values, two records."""
        tile = PAGE_ROWS * self.width * 4
        records = 0 if self.is_split else self.queries * (self.width + LANES) * 4
        spare = (self.width + LANES) * 4
        keys = tile * self.held
        return (self.queries * self.width * 4, keys, keys, tile, records, records, spare)

    @property
    def thread_bytes(self) -> int:
        return padded(sum(self.thread_parts))


class Attend(JitKernel):
    """Let each row attend to its slot's pages and its own segment."""

    types = (*PLAIN_TYPES, "bfloat16")

    def refusal(self, sig: Signature) -> str:
        each = sig["H"] // sig["G"]
        if each > QUERIES:
            return f"{each} heads to a key head were asked for; up to {QUERIES} work"
        return ""

    def numerics(self, sig: Signature) -> Numerics:
        return Numerics.BF16 if self._multiplies_pairs(sig) else Numerics.F32

    def _multiplies_pairs(self, sig: Signature) -> bool:
        """Are both products those of bfloat16 numbers, with float32 sums?"""
        return self.jit.isa.pairs and sig.dtype("k_pool").itemsize == 2

    def _form(self, sig: Signature) -> tuple[type[Kernel], int]:
        """Return what emits the functions, and how many queries share a reading of the keys."""
        isa = self.jit.isa
        if self._multiplies_pairs(sig):
            return (Tiles, TILE) if isa.matrices else (Pairs, 4)
        return Kernel, 4 if isa.is_wide else 1

    def _sizes(self, sig: Signature) -> Sizes:
        return Sizes.of(sig, *self._form(sig))

    def scratch(self, sig: Signature) -> int:
        sizes = self._sizes(sig)
        parts = sizes.parts_bytes if sizes.is_split else 0
        return padded(parts) + self.jit.team.count * sizes.thread_bytes

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        assert scratch is not None
        sizes = self._sizes(sig)
        names = ("params", "q", "k", "v", "page_table", "k_pool", "v_pool", "y")
        parts = address(scratch)
        own = parts + (padded(sizes.parts_bytes) if sizes.is_split else 0)
        halves = sig.dtype("k_pool").itemsize == 2
        words = (
            *(*addresses(operands, *names), sig["H"], sig["G"], sig["K"], sig["slot_pages"]),
            *(sizes.rows, sizes.queries, sig["T"], parts, own, sizes.thread_bytes, sizes.width),
            *offsets(sig.layout, "segments"),
        )
        form, tile = self._form(sig)
        kind = f"{form.__name__.lower()}_{'bf16' if halves else 'f32'}"

        def emit(body: Callable[[Kernel], None]) -> Callable[[ir.Module, str], None]:
            return lambda m, n: body(form(m, n, tile, halves, self.jit.isa))

        def merge(module: ir.Module, name: str) -> None:
            Kernel(module, name, tile, halves, self.jit.isa, split=True).merge_rows()

        if sizes.is_split:
            calls = [
                self.call(f"attend_parts_{kind}", emit(form.parts), *words),
                self.call("attend_merge", merge, *words),
            ]
        else:
            calls = [self.call(f"attend_whole_{kind}", emit(form.whole), *words)]
        return self.step(calls, operands, scratch)
