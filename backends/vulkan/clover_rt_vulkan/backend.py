"""The backend: finds devices through the Vulkan loader and opens one."""

from __future__ import annotations

from clover_rt.backend import Backend, Device, DeviceInfo, Probe
from clover_rt_vulkan import find


class VulkanBackend(Backend):
    """Any card with a Vulkan 1.2 driver; software devices by name."""

    name = "vulkan"
    api = (1, 2)

    def probe(self) -> Probe:
        """Return the devices, or what is missing; asks the loader and opens none."""
        return find.probe()

    def open(self, info: DeviceInfo) -> Device:
        return find.open_device(info)
