"""output_gate: a work-item for a number."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up


class OutputGate(VulkanKernel):
    """Multiply by the sigmoid of the gate."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        grid = (up(sig["N"], ITEMS), sig["T"])
        gate = self.dispatch(sig, "output_gate", grid, operands, N=sig["N"])
        return Launches(self.device, [gate])
