"""coreset: shares of each row, then a group of work-items for a segment."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel, at, local, segments_of


class Coreset(ClKernel):
    """Choose the experts that a previewed block may use."""

    def supports(self, sig: Signature) -> str:
        return super().supports(sig) or self.too_local(8 * sig["E"] + 512, "experts")

    def rooms(self, sig: Signature) -> dict[str, int]:
        return {"shares": 4 * sig["T"] * sig["E"]}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        shares = self.room(sig, scratch)["shares"]
        sources = ("rank", "coreset")
        rows = self.launch(
            sig,
            sources,
            "share_rows",
            (sig["T"],),
            operands["params"],
            operands["logits"],
            shares,
            sig["E"],
            int(sig.attr("top_k")),
            local(sig["E"]),
        )
        segments = self.launch(
            sig,
            sources,
            "coreset",
            (segments_of(sig),),
            operands["params"],
            at(sig, "segments"),
            shares,
            operands["allowed"],
            sig["E"],
            float(sig.attr("top_p")),
            local(sig["E"]),
            local(sig["E"]),
        )
        return Launches(self.device, [rows, segments])
