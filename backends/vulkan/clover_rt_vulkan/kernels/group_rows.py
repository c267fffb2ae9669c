"""group_rows: a group of work-items for an expert."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import VulkanKernel


class GroupRows(VulkanKernel):
    """Sort the pairs of a pass by expert."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        sizes = {"E": sig["E"], "R": sig["R"]}
        pairs = self.dispatch(sig, "group_rows", (sig["E"],), operands, **sizes)
        return Launches(self.device, [pairs])
