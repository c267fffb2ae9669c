"""The vulkan backend: any card with a Vulkan 1.2 driver, through compute shaders."""

from __future__ import annotations

from clover_rt.backend import Backend
from clover_rt.hookspecs import hookimpl


@hookimpl
def clover_rt_backends() -> list[Backend]:
    """Return the vulkan backend; its modules are imported here and not with the package."""
    from clover_rt_vulkan.backend import VulkanBackend

    return [VulkanBackend()]
