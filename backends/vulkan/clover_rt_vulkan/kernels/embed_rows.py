"""embed_rows: a work-item for eight numbers of a row."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up
from clover_rt_vulkan.weights import matrices


class EmbedRows(VulkanKernel):
    """Look up the rows of tokens."""

    kept = ("embed",)

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return matrices(self.device, weights)["embed"]

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launches = [
            self.dispatch(
                sig,
                "embed_rows",
                (up(sig["D"], 8 * ITEMS), sig["T"]),
                {**operands, **prepared.buffers("embed", part)},
                prepared.constants("embed"),
                D=sig["D"],
                vocab=sig["vocab"],
                first=part.first,
                count=part.count,
            )
            for part in prepared.parts
        ]
        return Launches(self.device, launches)
