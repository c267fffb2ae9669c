"""causal_conv: rows, then the rings."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature, TableClass
from clover_rt_vulkan.device import Launches, VulkanBuffer
from clover_rt_vulkan.driver import Dispatch
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
        rows = conv_rows(self, sig, operands, prepared)
        if sig.table in (TableClass.PREVIEW, TableClass.VERIFY):
            return Launches(self.device, [rows])
        buffers = {name: operands[name] for name in ("params", "u", "ring")}
        grid = (up(sig["C"], ITEMS), segments_of(sig))
        ring = self.dispatch(sig, "keep_ring", grid, buffers, C=sig["C"], J=sig["J"])
        return Launches(self.device, [rows, ring])


def conv_rows(
    kernel: VulkanKernel,
    sig: Signature,
    operands: Mapping[str, Tensor],
    taps: Mapping[str, VulkanBuffer],
    **starts: int,
) -> Dispatch:
    """Return the dispatch that convolves rows; it leaves the rings as they are.

    starts  the words that operands start at in their tensors, by the names of the shader
    """
    names = ("params", "u", "ring", "tape_u", "y")
    return kernel.dispatch(
        sig,
        "causal_conv",
        (up(sig["C"], ITEMS), sig["T"]),
        {**{name: operands[name] for name in names}, "right": taps["taps"], **taps},
        {"HAS_RIGHT": int("right" in taps)},
        C=sig["C"],
        J=sig["J"],
        Q=sig["Q"],
        **starts,
    )
