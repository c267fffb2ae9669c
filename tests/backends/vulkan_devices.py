"""The Vulkan device that tests run on: lavapipe, a driver for processors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from clover_rt_vulkan.device import VulkanDevice

MISSING = "apt-get install libvulkan1 mesa-vulkan-drivers; pip install vulkan"


def open_vulkan(
    largest: int = 0, budget_s: float | None = None, cache: Path | None = None
) -> VulkanDevice:
    """Return lavapipe, opened; fails the test, and says what is missing, without it.

    largest  bytes of the largest buffer, 0 for the driver's limit
    """
    from clover_rt_vulkan import find

    problem = find.probe().problem
    if problem:
        pytest.fail(f"needs a Vulkan device ({problem}): {MISSING}")
    from clover_rt_vulkan.device import VulkanDevice
    from clover_rt_vulkan.driver import cards
    from clover_rt_vulkan.driver.raw import BUDGET_S, RawDriver

    instance = cards.make_instance()
    found = dict(find.named(cards.cards(instance)))
    if "llvmpipe" not in found:
        pytest.fail(f"needs lavapipe, there is {', '.join(found)}: {MISSING}")
    card = found["llvmpipe"]
    driver = RawDriver(instance, card, BUDGET_S if budget_s is None else budget_s, cache)
    return VulkanDevice(card.name, driver, largest=largest)
