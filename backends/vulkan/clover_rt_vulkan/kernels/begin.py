"""begin: page and count deltas of a pass."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import VulkanKernel


class Begin(VulkanKernel):
    """Apply the deltas; counts are added as integers."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        sizes = {"slot_pages": sig["slot_pages"], "vocab": sig["vocab"]}
        deltas = self.dispatch(sig, "begin", (1,), operands, **sizes)
        return Launches(self.device, [deltas])
