"""rope: a work-item for a number."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up


class Rope(VulkanKernel):
    """Rotate the first columns of each head."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        width = sig["H"] * sig["K"]
        grid = (up(width, ITEMS), sig["T"])
        axes = {"width": width, "K": sig["K"], "r": sig["r"]}
        return Launches(self.device, [self.dispatch(sig, "rope", grid, operands, **axes)])
