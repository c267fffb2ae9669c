"""begin: deltas in order; a page or an id may occur twice, so each is written on its own."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import CpuKernel, table_of, views


class Begin(CpuKernel):
    """Apply page and count deltas to the tables."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        page_table, counts = views(operands, "page_table", "counts")

        def step() -> None:
            for slot, index, page, _ in table.page_deltas.tolist():
                page_table[slot, index] = page
            for slot, token, amount, _ in table.count_deltas.tolist():
                counts[slot, token] += amount

        return step
