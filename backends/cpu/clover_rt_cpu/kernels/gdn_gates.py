"""gdn_gates: a few numbers a row, so float64 inside costs nothing; rounded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.kernel import CpuKernel, table_of, views
from clover_rt_cpu.weights import vector


class GdnGates(CpuKernel):
    """Compute log decay and write strength."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        rate = -np.exp(vector(weights["A_log"]).astype(np.float64))
        return rate, vector(weights["dt_bias"]).astype(np.float64)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        a, b, g, beta = views(operands, "a", "b", "g", "beta")
        rate, bias = prepared

        @np.errstate(all="ignore")
        def step() -> None:
            n = table.rows
            if not n:
                return
            x: Any = a[:n] + bias
            g[:n] = (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))) * rate
            beta[:n] = 1 / (1 + np.exp(-b[:n].astype(np.float64)))

        return step
