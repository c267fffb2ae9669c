"""kv_append: a work-item for a word of k and of v."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import ITEMS, KV_TYPES, VulkanKernel, is_bf16, odd_pool, up


class KvAppend(VulkanKernel):
    """Write causal rows into the pages."""

    types = KV_TYPES

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        return super().supports(sig) or odd_pool(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        width, halves = sig["G"] * sig["K"], is_bf16(sig)
        rows = self.dispatch(
            sig,
            "kv_append",
            (up(width, ITEMS << halves), sig["T"]),
            operands,
            {"KV_BF16": halves},
            width=width,
            slot_pages=sig["slot_pages"],
        )
        return Launches(self.device, [rows])
