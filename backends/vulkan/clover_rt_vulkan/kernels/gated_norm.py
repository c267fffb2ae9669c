"""gated_norm: a group of work-items for a value head."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import VulkanKernel
from clover_rt_vulkan.weights import vectors


class GatedNorm(VulkanKernel):
    """Normalise value heads and gate them."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return vectors(self.device, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        buffers, eps = {**operands, **prepared}, float(sig.attr("eps"))
        grid = (sig["H"], sig["T"])
        norm = self.dispatch(sig, "gated_norm", grid, buffers, V=sig["V"], eps=eps)
        return Launches(self.device, [norm])
