"""block_memory: a group of work-items for a preview row and a value head."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up
from clover_rt_vulkan.weights import vectors

MOST_COLUMNS = 8


class BlockMemory(VulkanKernel):
    """Mix a previewed block with itself and with the memory."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        if sig["V"] > MOST_COLUMNS * ITEMS:
            return f"V={sig['V']} exceeds {MOST_COLUMNS * ITEMS}, the columns of a group"
        return super().supports(sig) or self.too_shared(4 * sig["K"] + 512, "columns of a key")

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return vectors(self.device, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        mixed = self.dispatch(
            sig,
            "block_memory",
            (sig["H"], sig["T"]),
            {**operands, **prepared},
            {"KEY": sig["K"], "COLUMNS": up(sig["V"], ITEMS)},
            **{axis: sig[axis] for axis in ("G", "H", "V")},
        )
        return Launches(self.device, [mixed])
