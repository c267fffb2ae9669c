"""block_scan: one group of work-items for 64 columns of a head's memory."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature, TableClass
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, at, ceil, segments_of, too_wide_key


class BlockScan(ClKernel):
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
        names = ("qkv", "g", "beta", "S", "tape_k", "tape_v", "tape_g", "tape_beta", "o")
        launch = self.launch(
            sig,
            ("scan", "block_scan"),
            "block_scan",
            (ceil(sig["V"], ITEMS), sig["H"], segments_of(sig)),
            operands["params"],
            at(sig, "segments"),
            *(operands[n] for n in names),
            *(sig[a] for a in ("G", "H", "V", "Q")),
            KEY=sig["K"],
            HAS_Q=1,
        )
        return Launches(self.device, [launch])
