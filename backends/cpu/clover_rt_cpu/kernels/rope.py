"""rope: angles are looked up by position; columns behind the rotated ones are copied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import ROW_BLOCK, CpuKernel, Shapes, blocks, table_of, views


class Rope(CpuKernel):
    """Rotate the first columns of each head by the row's position."""

    def shapes(self, sig: Signature) -> Shapes:
        return {"turned": (ROW_BLOCK, sig["H"], sig["r"])}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        turned = self.room(sig, scratch)["turned"]
        heads, half = sig["H"], sig["r"]
        x, y = (a.reshape(len(a), heads, -1) for a in views(operands, "x", "y"))
        (angles,) = views(operands, "angles")

        def step() -> None:
            for s in table.read().segments:
                for rows in blocks(s.rows):
                    turn(s.row0 + rows.start, s.position + rows.start, rows.stop - rows.start)

        def turn(row: int, position: int, n: int) -> None:
            rows = slice(row, row + n)
            cos, sin = (angles[position : position + n, None, :, i] for i in (0, 1))
            low, high = x[rows, :, :half], x[rows, :, half : 2 * half]
            product = turned[:n]
            np.multiply(low, cos, out=y[rows, :, :half])
            np.multiply(high, sin, out=product)
            y[rows, :, :half] -= product
            np.multiply(high, cos, out=y[rows, :, half : 2 * half])
            np.multiply(low, sin, out=product)
            y[rows, :, half : 2 * half] += product
            np.copyto(y[rows, :, 2 * half :], x[rows, :, 2 * half :])

        return step
