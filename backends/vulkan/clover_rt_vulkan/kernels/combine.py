"""combine: a work-item for a number of a row."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up


class Combine(VulkanKernel):
    """Add up experts, shared expert and residual."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        buffers = dict(operands)
        # `shared` is a word of the shaders' language
        buffers["from_shared"] = buffers.pop("shared")
        grid = (up(sig["D"], ITEMS), sig["T"])
        total = self.dispatch(sig, "combine", grid, buffers, R=sig["R"], D=sig["D"])
        return Launches(self.device, [total])
