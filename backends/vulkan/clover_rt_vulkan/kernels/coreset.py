"""coreset: shares of each row, then a group of work-items for a segment."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import VulkanKernel, segments_of


class Coreset(VulkanKernel):
    """Choose the experts that a previewed block may use."""

    def supports(self, sig: Signature) -> str:
        return super().supports(sig) or self.too_shared(8 * sig["E"] + 512, "experts")

    def rooms(self, sig: Signature) -> dict[str, int]:
        return {"shares": 4 * sig["T"] * sig["E"]}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        shares, experts = self.room(sig, scratch)["shares"], sig["E"]
        rows = self.dispatch(
            sig,
            "share_rows",
            (sig["T"],),
            {"params": operands["params"], "logits": operands["logits"], "shares": shares},
            {"EXPERTS": experts},
            E=experts,
            R=int(sig.attr("top_k")),
        )
        segments = self.dispatch(
            sig,
            "coreset",
            (segments_of(sig),),
            {"params": operands["params"], "shares": shares, "allowed": operands["allowed"]},
            {"EXPERTS": experts},
            E=experts,
            top_p=float(sig.attr("top_p")),
        )
        return Launches(self.device, [rows, segments])
