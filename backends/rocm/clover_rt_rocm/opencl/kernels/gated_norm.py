"""gated_norm: one group of work-items for a value head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel
from clover_rt_rocm.opencl.weights import vector


class GatedNorm(ClKernel):
    """Normalise value heads and gate them."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return vector(self.device, weights["w"].whole().values(np.float32), weights["w"].name)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launch = self.launch(
            sig,
            "gated_norm",
            "gated_norm",
            (sig["H"], sig["T"]),
            operands["params"],
            operands["o"],
            operands["z"],
            prepared,
            operands["y"],
            sig["V"],
            float(sig.attr("eps")),
        )
        return Launches(self.device, [launch])
