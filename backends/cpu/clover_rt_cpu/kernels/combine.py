"""combine: experts are added in the order of the choices, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import ROW_BLOCK, CpuKernel, Shapes, blocks, sigmoid_of, table_of, views


class Combine(CpuKernel):
    """Add up a row's experts, the shared expert and the residual."""

    def shapes(self, sig: Signature) -> Shapes:
        return {"part": (ROW_BLOCK, sig["D"]), "gate": (ROW_BLOCK, 1)}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        y, ids, weights, shared, shared_gate, residual, h = views(
            operands, "y", "ids", "weights", "shared", "shared_gate", "residual", "h"
        )
        choices = sig["R"]
        pairs = y.reshape(len(ids), choices, -1)
        room = self.room(sig, scratch)
        parts, gates = room["part"], room["gate"]

        @np.errstate(all="ignore")
        def step() -> None:
            for rows in blocks(table.rows):
                n = rows.stop - rows.start
                part, total = parts[:n], h[rows]
                absent = ids[rows] < 0
                gaps = absent.any()
                np.multiply(shared[rows], sigmoid_of(shared_gate[rows], gates[:n]), out=total)
                for r in range(choices):
                    np.multiply(pairs[rows, r], weights[rows, r, None], out=part)
                    if gaps:
                        # what is not to be read may hold anything, also NaN
                        part[absent[:, r]] = 0
                    total += part
                total += residual[rows]

        return step
