"""block_scan: a group of work-items for 64 columns of a head's memory."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature, TableClass
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, segments_of, too_wide_key, up


class BlockScan(VulkanKernel):
    """Advance the memory row by row."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        return super().supports(sig) or too_wide_key(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        if sig.table is TableClass.PREVIEW:
            # the rows of previews are block_memory's
            return Launches(self.device, [])
        scan = self.dispatch(
            sig,
            "block_scan",
            (up(sig["V"], ITEMS), sig["H"], segments_of(sig)),
            operands,
            {"KEY": sig["K"]},
            **{axis: sig[axis] for axis in ("G", "H", "V", "Q")},
        )
        return Launches(self.device, [scan])
