"""rms_norm: one group of work-items for a group of columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel
from clover_rt_rocm.opencl.weights import vector


class RmsNorm(ClKernel):
    """Normalise groups of columns."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        values = weights["w"].whole().values(np.float32)
        return vector(self.device, np.float32(sig.attr("offset")) + values, weights["w"].name)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launch = self.launch(
            sig,
            "rms_norm",
            "rms_norm",
            (sig["G"], sig["T"]),
            operands["params"],
            operands["x"],
            prepared,
            operands["y"],
            sig["K"],
            float(sig.attr("eps")),
        )
        return Launches(self.device, [launch])
