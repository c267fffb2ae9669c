"""causal_conv: rows, then the rings."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature, TableClass
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, segments_of, up
from clover_rt_vulkan.weights import vectors


class CausalConv(VulkanKernel):
    """Convolve each channel over rows."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        if sig.table.has_preview and not sig.has("right"):
            return f"a {sig.table.value} table has previews, and there are 0 right taps"
        return super().supports(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return vectors(self.device, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        channels, taps = sig["C"], sig["J"]
        groups = up(channels, ITEMS)
        rows = self.dispatch(
            sig,
            "causal_conv",
            (groups, sig["T"]),
            {"right": prepared["taps"], **operands, **prepared},
            {"HAS_RIGHT": int("right" in prepared)},
            C=channels,
            J=taps,
            Q=sig["Q"],
        )
        if sig.table in (TableClass.PREVIEW, TableClass.VERIFY):
            return Launches(self.device, [rows])
        buffers = {name: operands[name] for name in ("params", "u", "ring")}
        grid = (groups, segments_of(sig))
        ring = self.dispatch(sig, "keep_ring", grid, buffers, C=channels, J=taps)
        return Launches(self.device, [rows, ring])
