"""coreset: the mass of each expert over a block, summed row by row in float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import Array, CpuKernel, table_of, views
from clover_rt_cpu.kernels.router_topk import largest


class Coreset(CpuKernel):
    """Choose the experts that a previewed block may use."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        logits, allowed = views(operands, "logits", "allowed")
        top_k, top_p = int(sig.attr("top_k")), np.float32(sig.attr("top_p"))

        @np.errstate(all="ignore")
        def step() -> None:
            rows = table.read()
            allowed[: len(rows.segments)] = 1
            if top_p >= 1:
                return
            for i, s in enumerate(rows.segments):
                if s in rows.previews:
                    keep(logits[s.row0 : s.row0 + s.rows], allowed[i])

        def keep(block: Array, out: Array) -> None:
            share = np.exp(block - block.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            best, added = largest(share, top_k)
            mass = np.zeros(block.shape[1], np.float32)
            np.add.at(mass, best.reshape(-1), added.reshape(-1))
            order = np.argsort(-mass, kind="stable")
            sums = np.cumsum(mass[order])
            before = np.zeros_like(sums)
            np.divide(sums[:-1], sums[-1], out=before[1:])
            kept = before < top_p
            kept[0] = True
            out[:] = 0
            out[order[kept]] = 1

        return step
