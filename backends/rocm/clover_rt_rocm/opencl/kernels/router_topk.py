"""router_topk: one group of work-items for a row."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel, at, local


class RouterTopk(ClKernel):
    """Choose the best experts of each row."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        return super().supports(sig) or self.too_local(4 * (sig["E"] + sig["R"]), "experts")

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        masked = sig.has("allowed")
        launch = self.launch(
            sig,
            ("rank", "router_topk"),
            "router_topk",
            (sig["T"],),
            operands["params"],
            at(sig, "row_segment"),
            operands["logits"],
            operands["allowed" if masked else "logits"],
            masked,
            operands["ids"],
            operands["weights"],
            sig["E"],
            sig["R"],
            local(sig["E"]),
            local(sig["R"]),
        )
        return Launches(self.device, [launch])
