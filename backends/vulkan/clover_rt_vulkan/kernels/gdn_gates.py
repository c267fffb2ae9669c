"""gdn_gates: decay and write strength, a work-item for a head of a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches, VulkanBuffer, VulkanDevice
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up
from clover_rt_vulkan.weights import vector


class GdnGates(VulkanKernel):
    """Make log decays and write strengths."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return decay_of(self.device, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        grid = (up(sig["H"], ITEMS), sig["T"])
        gates = self.dispatch(sig, "gdn_gates", grid, {**operands, **prepared}, H=sig["H"])
        return Launches(self.device, [gates])


def decay_of(device: VulkanDevice, weights: Mapping[str, HostWeight]) -> dict[str, VulkanBuffer]:
    """Return rate and bias of the decays, from float64 on the host."""
    log_rate, bias = weights["A_log"], weights["dt_bias"]
    rate = -np.exp(log_rate.whole().values())
    return {
        "rate": vector(device, rate, log_rate.name),
        "bias": vector(device, bias.whole().values(), bias.name),
    }
