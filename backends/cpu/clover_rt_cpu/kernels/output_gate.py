"""output_gate: elementwise, in blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import ROW_BLOCK, CpuKernel, Shapes, blocks, sigmoid_of, table_of, views


class OutputGate(CpuKernel):
    """Multiply rows with the sigmoid of their gate."""

    def shapes(self, sig: Signature) -> Shapes:
        return {"gate": (ROW_BLOCK, sig["N"])}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        gates = self.room(sig, scratch)["gate"]
        o, gate, y = views(operands, "o", "gate", "y")

        @np.errstate(all="ignore")
        def step() -> None:
            for rows in blocks(table.rows):
                share = sigmoid_of(gate[rows], gates[: rows.stop - rows.start])
                np.multiply(o[rows], share, out=y[rows])

        return step
