"""rms_norm: a group of work-items for a group of columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import VulkanKernel
from clover_rt_vulkan.weights import vector


class RmsNorm(VulkanKernel):
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
        buffers = {**operands, "w": prepared}
        grid = (sig["G"], sig["T"])
        eps = float(sig.attr("eps"))
        norm = self.dispatch(sig, "rms_norm", grid, buffers, K=sig["K"], eps=eps)
        return Launches(self.device, [norm])
