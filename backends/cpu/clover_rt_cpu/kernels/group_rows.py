"""group_rows: one stable sort of the pairs by expert; pairs of no expert sort behind all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import CpuKernel, table_of, views


class GroupRows(CpuKernel):
    """Sort the pairs of a pass by expert."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        ids, order, offsets = views(operands, "ids", "order", "offsets")
        count = int(sig.attr("experts"))
        narrow = np.uint16 if count < 1 << 16 else np.int64

        def step() -> None:
            flat = ids[: table.rows].reshape(-1)
            key = np.where((flat >= 0) & (flat < count), flat, count).astype(narrow)
            sizes = np.bincount(key, minlength=count + 1)[:count]
            offsets[0] = 0
            np.cumsum(sizes, out=offsets[1:])
            order[: len(flat)] = np.argsort(key, kind="stable")
            order[int(offsets[count]) : len(flat)] = -1

        return step
