"""gdn_gates: decay and write strength, one work-item for a head of a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, ceil
from clover_rt_rocm.opencl.weights import vector


class GdnGates(ClKernel):
    """Make log decays and write strengths."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        log_rate, bias = weights["A_log"], weights["dt_bias"]
        rate = -np.exp(log_rate.whole().values())
        return {
            "rate": vector(self.device, rate, log_rate.name),
            "bias": vector(self.device, bias.whole().values(), bias.name),
        }

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launch = self.launch(
            sig,
            "gdn_gates",
            "gdn_gates",
            (ceil(sig["H"], ITEMS), sig["T"]),
            operands["params"],
            operands["a"],
            operands["b"],
            prepared["rate"],
            prepared["bias"],
            operands["g"],
            operands["beta"],
            sig["H"],
        )
        return Launches(self.device, [launch])
