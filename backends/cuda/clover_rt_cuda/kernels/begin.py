"""begin: one program holds all deltas of a pass.

Of several page deltas for one entry the last is written. Counts are added with integer atomics,
whose order does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, Words, block, table_of, views
from clover_rt_cuda.kernels.tools import COUNT_DELTAS, PAGE_DELTAS


@triton.jit
def begin_kernel(
    table, page_deltas, count_deltas, page_table, counts, pages, vocab,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n = tl.load(table + PAGE_DELTAS)
    i = tl.arange(0, BP)
    ok = i < n
    entry = table + page_deltas + 4 * i
    slot, index = tl.load(entry, mask=ok, other=-1), tl.load(entry + 1, mask=ok, other=-1)
    place = slot.to(tl.int64) * pages + index
    later = 0 * i
    for j in range(0, n):
        other = table + page_deltas + 4 * j
        same = (slot == tl.load(other)) & (index == tl.load(other + 1)) & (i < j)
        later += same.to(tl.int32)
    page = tl.load(entry + 2, mask=ok, other=0)
    tl.store(page_table + place, page, mask=ok & (later == 0))
    c = tl.arange(0, BC)
    some = c < tl.load(table + COUNT_DELTAS)
    delta = table + count_deltas + 4 * c
    row = tl.load(delta, mask=some, other=0).to(tl.int64) * vocab
    amount = tl.load(delta + 2, mask=some, other=0)
    tl.atomic_add(counts + row + tl.load(delta + 1, mask=some, other=0), amount, mask=some)


class Begin(TritonKernel):
    """Apply the page and count deltas of a pass."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        words = Words.of(sig.layout)
        return self.launcher(
            sig,
            begin_kernel,
            (1,),
            table_of(operands),
            words.page_deltas,
            words.count_deltas,
            *views(operands, "page_table", "counts"),
            sig["slot_pages"],
            sig["vocab"],
            BP=block(sig.layout.page_deltas),
            BC=block(sig.layout.count_deltas),
        )
