"""advance: the tape's rows into memory and ring."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, too_wide_key, up


class Advance(VulkanKernel):
    """Replay the accepted rows of a verify."""

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
        slots = min(sig.layout.segments, sig["slots"])
        memory, ring = ("S", "tape_k", "tape_v", "tape_g", "tape_beta"), ("ring", "tape_u")
        rows = self.dispatch(
            sig,
            "advance",
            (up(sig["V"], ITEMS), sig["H"], slots),
            {name: operands[name] for name in ("params", *memory)},
            {"KEY": sig["K"]},
            **{axis: sig[axis] for axis in ("G", "H", "V", "Q")},
        )
        kept = self.dispatch(
            sig,
            "advance_ring",
            (up(sig["C"], ITEMS), slots),
            {name: operands[name] for name in ("params", *ring)},
            **{axis: sig[axis] for axis in ("C", "J", "Q")},
        )
        return Launches(self.device, [rows, kept])
