"""gated_norm: the norm of each head, then the gate; blocks of rows stay in cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.kernel import ROW_BLOCK, CpuKernel, Shapes, blocks, sigmoid_of, table_of, views
from clover_rt_cpu.weights import vector


class GatedNorm(CpuKernel):
    """Normalise each value head and gate it."""

    def shapes(self, sig: Signature) -> Shapes:
        return {"gate": (ROW_BLOCK, sig["H"], sig["V"])}

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return vector(weights["w"])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        gates = self.room(sig, scratch)["gate"]
        heads, width = sig["H"], sig["V"]
        o, z, y = (a.reshape(len(a), heads, width) for a in views(operands, "o", "z", "y"))
        eps, scale = np.float32(sig.attr("eps")), np.float32(1 / width)

        @np.errstate(all="ignore")
        def step() -> None:
            for rows in blocks(table.rows):
                inverse: Any = np.vecdot(o[rows], o[rows])
                inverse *= scale
                inverse += eps
                np.sqrt(inverse, out=inverse)
                gate = sigmoid_of(z[rows], gates[: rows.stop - rows.start])
                gate *= z[rows]
                np.divide(o[rows], inverse[:, :, None], out=y[rows])
                np.multiply(y[rows], prepared, out=y[rows])
                np.multiply(y[rows], gate, out=y[rows])

        return step
