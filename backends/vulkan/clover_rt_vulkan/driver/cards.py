"""Cards: the devices that the Vulkan loader lists, with what their drivers tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import vulkan
from vulkan import ffi, lib

from clover_rt_vulkan.driver import Limits
from clover_rt_vulkan.driver.vk import API_1_2, NULL, call, listed, struct, text

KINDS = ("other", "integrated", "discrete", "virtual", "cpu")
BUDGET = "VK_EXT_memory_budget"
INTEGER_DOT = "VK_KHR_shader_integer_dot_product"
PCI = "VK_EXT_pci_bus_info"
# features by the names that shaders ask for: the structure and the field that has them
FEATURES = {
    "16bit_storage": ("PhysicalDeviceVulkan11Features", "storageBuffer16BitAccess"),
    "8bit_storage": ("PhysicalDeviceVulkan12Features", "storageBuffer8BitAccess"),
    "fp16": ("PhysicalDeviceVulkan12Features", "shaderFloat16"),
    "int8": ("PhysicalDeviceVulkan12Features", "shaderInt8"),
    "int8_dot": (
        "PhysicalDeviceShaderIntegerDotProductFeatures",
        "shaderIntegerDotProduct",
    ),
}


@dataclass(frozen=True)
class Card:
    """One device as its driver describes it.

    api           (major, minor)
    uuid, pci     what other interfaces know it by; "" where the driver does not tell
    family        the queue family that work goes to; -1 where none computes
    clock_bits    bits of that family's timestamps; 0 for none
    tick_ns       nanoseconds of a timestamp's unit
    memory_bytes  of the largest memory that is the device's own
    cache_id      what its compiled pipelines are valid for
    """

    handle: Any
    name: str
    kind: str
    api: tuple[int, int]
    driver: str
    uuid: str
    pci: str
    family: int
    clock_bits: int
    tick_ns: float
    memory_bytes: int
    limits: Limits
    features: frozenset[str]
    extensions: frozenset[str]
    cache_id: str


@contextmanager
def instance() -> Iterator[Any]:
    """Give an instance of Vulkan and destroy it at the end."""
    handle = make_instance()
    try:
        yield handle
    finally:
        lib.vkDestroyInstance(handle, NULL)


def make_instance() -> Any:
    """Return an instance; DriverFailure where the loader finds no driver."""
    about = struct("ApplicationInfo", pApplicationName="clover-rt", apiVersion=API_1_2)
    info = struct("InstanceCreateInfo", pApplicationInfo=about)
    out = ffi.new("VkInstance*")
    call("vkCreateInstance", info, NULL, out)
    return out[0]


def cards(handle: Any) -> list[Card]:
    """Return the devices of an instance that know Vulkan 1.1, in the loader's order."""
    found = listed("vkEnumeratePhysicalDevices", "VkPhysicalDevice", handle)
    return [describe(device) for device in found]


def describe(device: Any) -> Card:
    """Return what a physical device's driver says of it; what 1.2 added is 0 on an older one."""
    told = listed("vkEnumerateDeviceExtensionProperties", "VkExtensionProperties", device, NULL)
    extensions = frozenset(text(e.extensionName) for e in told)
    more = struct("PhysicalDeviceVulkan12Properties")
    core = struct("PhysicalDeviceVulkan11Properties", pNext=more)
    bus = struct("PhysicalDevicePCIBusInfoPropertiesEXT", pNext=core)
    chain = bus if PCI in extensions else core
    basic = struct("PhysicalDeviceProperties2", pNext=chain)
    lib.vkGetPhysicalDeviceProperties2(device, basic)
    properties = basic.properties
    api = (properties.apiVersion >> 22 & 127, properties.apiVersion >> 12 & 1023)
    family, bits = _family(device)
    kind = int(properties.deviceType)
    pci = f"{bus.pciDomain:04x}:{bus.pciBus:02x}:{bus.pciDevice:02x}.{bus.pciFunction}"
    cache = (properties.vendorID, properties.deviceID, properties.driverVersion)
    return Card(
        handle=device,
        name=text(properties.deviceName),
        kind=KINDS[kind] if kind < len(KINDS) else "other",
        api=api,
        driver=f"{text(more.driverName)} {text(more.driverInfo)}".strip(),
        uuid=bytes(core.deviceUUID).hex(),
        pci=pci if PCI in extensions else "",
        family=family,
        clock_bits=bits,
        tick_ns=float(properties.limits.timestampPeriod),
        memory_bytes=_own_memory(device),
        limits=_limits(properties.limits, core),
        features=_features(device, extensions, api),
        extensions=extensions,
        cache_id=f"{cache} {bytes(properties.pipelineCacheUUID).hex()}",
    )


def budgets(card: Card) -> list[int]:
    """Return the bytes of each heap that this process may still take; [] where it is not told."""
    if BUDGET not in card.extensions:
        return []
    budget = struct("PhysicalDeviceMemoryBudgetPropertiesEXT")
    told = struct("PhysicalDeviceMemoryProperties2", pNext=budget)
    lib.vkGetPhysicalDeviceMemoryProperties2(card.handle, told)
    count = told.memoryProperties.memoryHeapCount
    return [int(budget.heapBudget[i]) - int(budget.heapUsage[i]) for i in range(count)]


def _limits(limits: Any, core: Any) -> Limits:
    x, y, z = limits.maxComputeWorkGroupCount
    return Limits(
        alignment=int(limits.minStorageBufferOffsetAlignment),
        binding=int(limits.maxStorageBufferRange),
        allocation=int(core.maxMemoryAllocationSize),
        bindings=int(
            min(
                limits.maxPerStageDescriptorStorageBuffers,
                limits.maxDescriptorSetStorageBuffers,
                limits.maxPerStageResources,
            )
        ),
        push=int(limits.maxPushConstantsSize),
        shared=int(limits.maxComputeSharedMemorySize),
        items=int(limits.maxComputeWorkGroupInvocations),
        groups=(int(x), int(y), int(z)),
        subgroup=int(core.subgroupSize),
    )


def _family(device: Any) -> tuple[int, int]:
    """Return (queue family, bits of its timestamps): one that does not draw, if there is one."""
    count = ffi.new("uint32_t*")
    lib.vkGetPhysicalDeviceQueueFamilyProperties(device, count, NULL)
    found = ffi.new("VkQueueFamilyProperties[]", max(count[0], 1))
    lib.vkGetPhysicalDeviceQueueFamilyProperties(device, count, found)
    able = [i for i in range(count[0]) if found[i].queueFlags & vulkan.VK_QUEUE_COMPUTE_BIT]
    if not able:
        return -1, 0
    best = min(able, key=lambda i: bool(found[i].queueFlags & vulkan.VK_QUEUE_GRAPHICS_BIT))
    return best, int(found[best].timestampValidBits)


def _own_memory(device: Any) -> int:
    memory = ffi.new("VkPhysicalDeviceMemoryProperties*")
    lib.vkGetPhysicalDeviceMemoryProperties(device, memory)
    own = vulkan.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    return max((int(h.size) for h in heaps if h.flags & own), default=0)


def _features(device: Any, extensions: frozenset[str], api: tuple[int, int]) -> frozenset[str]:
    if api < (1, 2):
        return frozenset()
    # part of Vulkan 1.3, but 1.2 was asked for
    found = feature_structs(INTEGER_DOT in extensions)
    basic = struct("PhysicalDeviceFeatures2", pNext=next(reversed(found.values())))
    lib.vkGetPhysicalDeviceFeatures2(device, basic)
    return frozenset(
        name
        for name, (kind, field) in FEATURES.items()
        if kind in found and getattr(found[kind], field)
    )


def feature_structs(has_dot: bool) -> dict[str, Any]:
    """Return the structures of FEATURES by name, each linked to the one before."""
    kinds = dict.fromkeys(kind for kind, _ in FEATURES.values())
    out: dict[str, Any] = {}
    for kind in kinds:
        if has_dot or "IntegerDot" not in kind:
            before = next(reversed(out.values()), NULL)
            out[kind] = struct(kind, pNext=before)
    return out
