"""linear: items are runs of weight blocks, each multiplied with all rows while it is in cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.jit.kernel import (
    JitKernel,
    addresses,
    is_rounded,
    padded,
    quantises,
    row_count,
)
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.pack import Blocks, blocks_of, packed_bytes
from clover_rt_cpu.jit.product import BLOCK, GROUP, RECORD, WORDS, Block, Inner, quantise
from clover_rt_cpu.jit.tiles import Tiles
from clover_rt_cpu.jit.values import F32V, Value

ITEM_BYTES = 64 << 10


class Linear(JitKernel):
    """Multiply rows with a weight and add a residual."""

    products = ("w",)

    def scratch(self, sig: Signature) -> int:
        if not is_rounded(sig, "w"):
            return 0
        return padded(sig["T"] * (sig["K"] // GROUP) * RECORD)

    def prepared_bytes(self, sig: Signature) -> int:
        fmt, group = sig.format("w")
        return packed_bytes(fmt, group, (sig["N"], sig["K"]))

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return blocks_of(self.jit, weights["w"])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        blocks: Blocks = prepared
        inner = blocks.inner(self.jit, quantises(sig))
        params, x, y, residual = addresses(operands, "params", "x", "y", "residual")
        columns, width = sig["K"], sig["N"]
        calls = []
        rows = x
        if inner.quantises:
            assert scratch is not None
            (rows,) = addresses({"scratch": scratch}, "scratch")
            calls.append(quantise_rows(self, inner.bias, params, x, columns, rows))
        chunk = items_of(blocks, columns, self.jit.team.count)
        unit = f"linear_{inner.name}"
        words = (
            *(params, blocks.table.ctypes.data, len(blocks.table), rows, columns),
            *(blocks.shift, y, residual, width, chunk, self.jit.tiles(inner)),
        )
        calls.append(self.call(unit, lambda m, n: _emit(m, n, inner), *words))
        return self.step(calls, operands, scratch, blocks)


def items_of(blocks: Blocks, columns: int, threads: int) -> int:
    """Return the blocks of an item: about 64 KB, but enough items for every thread."""
    many = int(ITEM_BYTES / blocks.block_bytes(columns))
    return max(1, min(many, blocks.blocks // (4 * threads)))


def quantise_rows(
    kernel: JitKernel, bias: int, params: int, x: int, columns: int, records: int
) -> Any:
    """Return the call that turns the rows of the pass into records."""
    unit = f"quantise_{bias}"
    return kernel.call(unit, lambda m, n: _emit_quantise(m, n, bias), params, x, columns, records)


def _emit_quantise(module: ir.Module, name: str, bias: int) -> None:
    code = Code(module, name, split=True)
    params, x, columns, records = code.args(4)
    groups = row_count(code, params) * (columns // GROUP)
    lo, hi = code.share(groups)
    quantise_range(code, lo, hi, x, records, bias)
    code.end()


def quantise_range(code: Code, lo: Value, hi: Value, x: Value, records: Value, bias: int) -> None:
    """Turn groups lo .. hi - 1 of 32 numbers into records."""
    with code.loop(lo, hi) as g:
        at = x + g * (4 * GROUP)
        both = [code.load(F32V, at), code.load(F32V, at + 4 * BLOCK)]
        quantise(code, both, records + g * RECORD, bias)


def _emit(module: ir.Module, name: str, inner: Inner) -> None:
    code = Code(module, name)
    params, table, blocks, x, columns, shift = code.args(6)
    y, residual, width, chunk, functions = code.args(11)[6:]
    tiles = Tiles(code, inner, functions)
    rows = row_count(code, params)
    stride = inner.row_stride(columns)
    items = code.select(rows > 0, (blocks + chunk - 1) // chunk, 0)
    with code.deal(items) as item:
        first = item * chunk
        with code.loop(first, code.least(first + chunk, blocks)) as b:
            block = table + b * (8 * WORDS)
            at = Block.at(code, block)

            def store(m: Value, sums: Value, at: Block = at) -> None:
                offset = (m * width + at.first) * 4
                put(code, sums, y + offset, residual, residual + offset, at.count)

            tiles.run(block, rows, lambda m: x + m * stride, columns, shift, store, (x, stride))
    code.end()


def put(code: Code, sums: Value, to: Value, residual: Value, added: Value, count: Value) -> None:
    """Store up to 16 results, with the residual added where its address is not 0."""
    live = code.live(count)

    def with_residual() -> None:
        whole.v = sums + code.masked(F32V, added, live)

    whole = code.var(sums)
    with code.when(residual.differs(0)):
        with_residual()
    code.either(
        count.equals(BLOCK),
        lambda: code.store(whole.v, to),
        lambda: code.masked_store(whole.v, to, live),
    )
