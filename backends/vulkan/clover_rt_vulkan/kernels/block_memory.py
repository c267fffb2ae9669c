"""block_memory: a group of work-items for eight preview rows and a value head."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up
from clover_rt_vulkan.weights import vectors

MOST_COLUMNS = 8
# rows that share a reading of the memory
ROWS = 8


class BlockMemory(VulkanKernel):
    """Mix a previewed block with itself and with the memory."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        return too_wide_value(self, sig) or super().supports(sig)

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
            (sig["H"], up(sig["T"], ROWS)),
            # o is not gated, and what would gate it is not read
            {
                "z": operands["g"],
                "norm": operands["g"],
                "sizes": operands["o"],
                **operands,
                **prepared,
            },
            {"KEY": sig["K"], "COLUMNS": up(sig["V"], ITEMS), "GATED": 0, "ROWS": ROWS},
            splits=0,
            **{axis: sig[axis] for axis in ("G", "H", "V")},
        )
        return Launches(self.device, [mixed])


def too_wide_value(kernel: VulkanKernel, sig: Signature) -> str:
    """Return "" where a group of work-items holds a head's columns, else a refusal."""
    if sig["V"] > MOST_COLUMNS * ITEMS:
        return f"V={sig['V']} exceeds {MOST_COLUMNS * ITEMS}, the columns of a group"
    return kernel.too_shared(4 * ROWS * (sig["K"] + 2) + 512, "columns of a key")
