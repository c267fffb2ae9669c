"""rms_norm: one dot product a group; its order of sums depends on the group's width alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.kernel import CpuKernel, blocks, table_of, views
from clover_rt_cpu.weights import vector


class RmsNorm(CpuKernel):
    """Normalise groups of columns by their root mean square."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return vector(weights["w"]) + np.float32(sig.attr("offset"))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        width = sig["K"]
        x, y = (a.reshape(len(a), -1, width) for a in views(operands, "x", "y"))
        eps, scale = np.float32(sig.attr("eps")), np.float32(1 / width)

        def step() -> None:
            for rows in blocks(table.rows):
                inverse: Any = np.vecdot(x[rows], x[rows])
                inverse *= scale
                inverse += eps
                np.sqrt(inverse, out=inverse)
                np.divide(x[rows], inverse[:, :, None], out=y[rows])
                np.multiply(y[rows], prepared, out=y[rows])

        return step
