"""The Vulkan device that tests run on: lavapipe, a driver for processors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from clover_rt_vulkan.device import VulkanDevice

# of the hot ops, judged through each driver
HOT_CASES = (
    "device/copies",
    "device/new-memory-is-zero",
    "linear/*/T=7,N=63,K=192",
    "expert_gemm/q4-32/T=[017]/spread",
    "expert_gemm/q8/T=7/spread",
    "expert_gemm/bf16/T=7/spread",
    "expert_gemm/f32/T=7/spread",
    "expert_gemm/256-experts",
    "block_scan/H=4,K=16,V=24/*",
    "block_scan/equal-keys-kept/*",
    "confidence_topk/f32/*",
)
MISSING = "apt-get install libvulkan1 mesa-vulkan-drivers; pip install vulkan"


def open_vulkan(
    largest: int = 0,
    budget_s: float | None = None,
    cache: Path | None = None,
    is_kompute: bool = False,
) -> VulkanDevice:
    """Return lavapipe, opened; fails the test, and says what is missing, without it.

    largest     bytes of the largest buffer, 0 for the driver's limit
    is_kompute  through kp; it needs neither budget nor cache
    """
    from clover_rt_vulkan import find

    problem = find.probe().problem
    if problem:
        pytest.fail(f"needs a Vulkan device ({problem}): {MISSING}")
    from clover_rt_vulkan.device import VulkanDevice
    from clover_rt_vulkan.driver import cards
    from clover_rt_vulkan.driver.raw import BUDGET_S, RawDriver

    instance = cards.make_instance()
    listed = cards.cards(instance)
    found = dict(find.named(listed))
    if "llvmpipe" not in found:
        pytest.fail(f"needs lavapipe, there is {', '.join(found)}: {MISSING}")
    card = found["llvmpipe"]
    if is_kompute:
        from clover_rt_vulkan.driver.kompute import KomputeDriver

        kompute = KomputeDriver(instance, card, listed.index(card))
        return VulkanDevice(card.name, kompute, largest=largest)
    driver = RawDriver(instance, card, BUDGET_S if budget_s is None else budget_s, cache)
    return VulkanDevice(card.name, driver, largest=largest)
