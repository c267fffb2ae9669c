"""kv_append: one program a row and up to 1024 columns, k and v alike."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Signature
from clover_rt_cuda.kernel import TritonKernel, Words, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import PREVIEW, ROWS, SEGMENT, narrowed


@triton.jit
def pool_row(page_table, slot, place, pages, PAGE: tl.constexpr, ok):
    """The pool rows of places of a slot, 64 bits wide."""
    page = tl.load(page_table + slot.to(tl.int64) * pages + place // PAGE, mask=ok, other=0)
    return page.to(tl.int64) * PAGE + place % PAGE


@triton.jit
def kv_append_kernel(
    table, segments, row_segment, k, v, page_table, k_pool, v_pool, N, pages,
    PAGE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if row >= tl.load(table + ROWS):
        return
    entry = table + segments + tl.load(table + row_segment + row) * SEGMENT
    if tl.load(entry) == PREVIEW:
        return
    slot = tl.load(entry + 1)
    place = tl.load(entry + 4) + row - tl.load(entry + 2)
    target = pool_row(page_table, slot, place, pages, PAGE, True) * N
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    ok = n < N
    source = row.to(tl.int64) * N + n
    kind: tl.constexpr = k_pool.dtype.element_ty
    tl.store(k_pool + target + n, narrowed(tl.load(k + source, mask=ok, other=0), kind), mask=ok)
    tl.store(v_pool + target + n, narrowed(tl.load(v + source, mask=ok, other=0), kind), mask=ok)


class KvAppend(TritonKernel):
    """Write the rows of commit and verify segments into their pages."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        words, width = Words.of(sig.layout), sig["G"] * sig["K"]
        columns = block(width, 16, 1024)
        return self.launcher(
            sig,
            kv_append_kernel,
            (sig["T"], cdiv(width, columns)),
            table_of(operands),
            words.segments,
            words.row_segment,
            *views(operands, "k", "v", "page_table", "k_pool", "v_pool"),
            width,
            sig["slot_pages"],
            PAGE=PAGE_ROWS,
            BN=columns,
        )
