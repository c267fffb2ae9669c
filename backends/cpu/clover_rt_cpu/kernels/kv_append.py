"""kv_append: rows are copied page by page; the assignment rounds to the pool's type."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Kind, Signature
from clover_rt_cpu.kernel import PLAIN_TYPES, CpuKernel, table_of, views


class KvAppend(CpuKernel):
    """Write k and v of causal rows into their slot's pages."""

    types = (*PLAIN_TYPES, "bfloat16")

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        k, v, page_table, k_pool, v_pool = views(
            operands, "k", "v", "page_table", "k_pool", "v_pool"
        )

        def step() -> None:
            for s in table.read().segments:
                if s.kind is Kind.PREVIEW:
                    continue
                done = 0
                while done < s.rows:
                    page, place = divmod(s.position + done, PAGE_ROWS)
                    n = min(PAGE_ROWS - place, s.rows - done)
                    first = int(page_table[s.slot, page]) * PAGE_ROWS + place
                    row = s.row0 + done
                    k_pool[first : first + n] = k[row : row + n]
                    v_pool[first : first + n] = v[row : row + n]
                    done += n

        return step
