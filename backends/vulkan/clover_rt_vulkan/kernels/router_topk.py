"""router_topk: a group of work-items for a row."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import VulkanKernel


class RouterTopk(VulkanKernel):
    """Choose the best experts of each row."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        return super().supports(sig) or self.too_shared(4 * (sig["E"] + sig["R"]), "experts")

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        is_masked, experts, choices = sig.has("allowed"), sig["E"], sig["R"]
        routes = self.dispatch(
            sig,
            "router_topk",
            (sig["T"],),
            {"allowed": operands["logits"], **operands},
            {"EXPERTS": experts, "CHOICES": choices, "HAS_ALLOWED": int(is_masked)},
            E=experts,
            R=choices,
        )
        return Launches(self.device, [routes])
