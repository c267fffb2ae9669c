"""Ask the Vulkan loader for devices, limits and features, through ctypes; runs in a child process.

Offsets and numbers are those of vulkan_core.h on 64-bit systems.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
from typing import Any

KINDS = ("other", "integrated", "discrete", "virtual", "cpu")
API_1_3 = 1 << 22 | 3 << 12
# structure types
APPLICATION, INSTANCE = 0, 1
PROPERTIES2, FEATURES2 = 1000059001, 1000059000
SUBGROUP, SUBGROUP_SIZES, DRIVER = 1000094000, 1000225000, 1000196000
MAINTENANCE3, MAINTENANCE4, PCI_INFO = 1000168000, 1000413001, 1000212000
FLOAT16_INT8, STORAGE16, STORAGE8 = 1000082000, 1000083000, 1000177000
INTEGER_DOT, MEMORY_BUDGET = 1000280000, 1000237000
# VkPhysicalDeviceProperties: name at 20, limits at 296 (after the pipeline cache id)
NAME_AT, LIMITS_AT, PROPERTIES_BYTES = 20, 296, 824
# inside VkPhysicalDeviceLimits: (offset, words)
LIMITS = {
    "max_storage_buffer_range": (28, 1),
    "max_push_constants": (32, 1),
    "max_shared_memory": (216, 1),
    "max_workgroup_count": (220, 3),
    "max_workgroup_invocations": (232, 1),
    "max_workgroup_size": (236, 3),
}
DEVICE_LOCAL = 1


def ask() -> dict[str, Any]:
    """Return the loader and every device with its driver, limits and features."""
    name = ctypes.util.find_library("vulkan") or "libvulkan.so.1"
    try:
        vk = ctypes.CDLL(name)
    except OSError:
        return {"loader": "", "devices": []}
    instance, problem = _instance(vk)
    if instance is None:
        return {"loader": name, "devices": [], "problem": problem}
    count = ctypes.c_uint32()
    status = vk.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    handles = (ctypes.c_void_p * count.value)()
    if count.value:
        vk.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
    out: dict[str, Any] = {"loader": name, "devices": [_device(vk, h) for h in handles if h]}
    if status < 0:
        out["problem"] = f"vkEnumeratePhysicalDevices: error {status}"
    vk.vkDestroyInstance(instance, None)
    return out


def _instance(vk: Any) -> tuple[Any, str]:
    text = ctypes.create_string_buffer(b"clover-rt doctor")
    at = ctypes.addressof(text)
    app = ctypes.create_string_buffer(struct.pack("<IxxxxQQIxxxxQII", 0, 0, at, 1, at, 1, API_1_3))
    about = struct.pack("<IxxxxQIxxxxQIxxxxQIxxxxQ", 1, 0, 0, ctypes.addressof(app), 0, 0, 0, 0)
    info = ctypes.create_string_buffer(about)
    instance = ctypes.c_void_p()
    status = vk.vkCreateInstance(info, None, ctypes.byref(instance))
    if status:
        return None, f"vkCreateInstance: error {status}"
    return instance, ""


class _Chain:
    """Structures linked by pNext: a header of 16 bytes each, then the fields."""

    def __init__(self) -> None:
        self.buffers: dict[int, Any] = {}
        self._last = 0

    def add(self, kind: int, nbytes: int) -> Any:
        buffer = ctypes.create_string_buffer(16 + nbytes)
        struct.pack_into("<IxxxxQ", buffer, 0, kind, self._last)
        self.buffers[kind] = buffer
        self._last = ctypes.addressof(buffer)
        return buffer

    def words(self, kind: int, count: int, at: int = 0) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}I", self.buffers[kind], 16 + at)

    def number(self, kind: int, at: int = 0) -> int:
        return int(struct.unpack_from("<Q", self.buffers[kind], 16 + at)[0])


def _device(vk: Any, handle: int) -> dict[str, Any]:
    device = ctypes.c_void_p(handle)
    names = _extensions(vk, device)
    basic = ctypes.create_string_buffer(PROPERTIES_BYTES)
    vk.vkGetPhysicalDeviceProperties(device, basic)
    api = struct.unpack_from("<I", basic, 0)[0]
    limits = {}
    for key, (at, words) in LIMITS.items():
        found = struct.unpack_from(f"<{words}I", basic, LIMITS_AT + at)
        limits[key] = list(found) if words > 1 else found[0]
    kind = struct.unpack_from("<I", basic, 16)[0]
    out: dict[str, Any] = {
        "name": _text(basic.raw, NAME_AT),
        "kind": KINDS[kind] if kind < len(KINDS) else "other",
        "api": f"{api >> 22 & 127}.{api >> 12 & 1023}.{api & 4095}",
        "vendor_id": f"0x{struct.unpack_from('<I', basic, 8)[0]:04x}",
        "id": "",
        **limits,
        "heaps": _heaps(vk, device),
        "cooperative_matrix": "VK_KHR_cooperative_matrix" in names,
    }
    # the structures below are of version 1.2, or extensions that such devices have
    if api >= 1 << 22 | 2 << 12:
        out |= _more(vk, device, names, api)
    return out


def _more(vk: Any, device: Any, names: set[str], api: int) -> dict[str, Any]:
    chain = _Chain()
    chain.add(SUBGROUP, 16)
    chain.add(DRIVER, 4 + 256 + 256 + 4)
    chain.add(MAINTENANCE3, 16)
    is_1_3 = api >= API_1_3
    has_sizes = is_1_3 or "VK_EXT_subgroup_size_control" in names
    has_size = is_1_3 or "VK_KHR_maintenance4" in names
    if has_sizes:
        chain.add(SUBGROUP_SIZES, 16)
    if has_size:
        chain.add(MAINTENANCE4, 8)
    if "VK_EXT_pci_bus_info" in names:
        chain.add(PCI_INFO, 16)
    vk.vkGetPhysicalDeviceProperties2(device, chain.add(PROPERTIES2, PROPERTIES_BYTES))
    driver = chain.buffers[DRIVER].raw
    out: dict[str, Any] = {
        "driver": _text(driver, 20),
        "driver_version": _text(driver, 276),
        "subgroup_size": chain.words(SUBGROUP, 1)[0],
        "max_memory_allocation": chain.number(MAINTENANCE3, 8),
    }
    if has_sizes:
        out["subgroup_sizes"] = list(chain.words(SUBGROUP_SIZES, 2))
    if has_size:
        out["max_buffer"] = chain.number(MAINTENANCE4)
    if "VK_EXT_pci_bus_info" in names:
        domain, bus, slot, function = chain.words(PCI_INFO, 4)
        out["id"] = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
    return out | _features(vk, device, names, is_1_3)


def _features(vk: Any, device: Any, names: set[str], is_1_3: bool) -> dict[str, bool]:
    chain = _Chain()
    chain.add(FLOAT16_INT8, 8)
    chain.add(STORAGE16, 16)
    chain.add(STORAGE8, 16)
    has_dot = is_1_3 or "VK_KHR_shader_integer_dot_product" in names
    if has_dot:
        chain.add(INTEGER_DOT, 8)
    # VkPhysicalDeviceFeatures: 55 flags
    vk.vkGetPhysicalDeviceFeatures2(device, chain.add(FEATURES2, 4 * 55 + 4))
    fp16, int8 = chain.words(FLOAT16_INT8, 2)
    return {
        "fp16": bool(fp16),
        "int8": bool(int8),
        "storage_16bit": bool(chain.words(STORAGE16, 1)[0]),
        "storage_8bit": bool(chain.words(STORAGE8, 1)[0]),
        "integer_dot": has_dot and bool(chain.words(INTEGER_DOT, 1)[0]),
    }


def _extensions(vk: Any, device: Any) -> set[str]:
    count = ctypes.c_uint32()
    vk.vkEnumerateDeviceExtensionProperties(device, None, ctypes.byref(count), None)
    raw = ctypes.create_string_buffer(260 * max(count.value, 1))
    vk.vkEnumerateDeviceExtensionProperties(device, None, ctypes.byref(count), raw)
    return {_text(raw.raw, 260 * i) for i in range(count.value)}


def _heaps(vk: Any, device: Any) -> list[dict[str, Any]]:
    # VkPhysicalDeviceMemoryProperties: a count, 32 types of 8 bytes, a count, 16 heaps of 16
    raw = ctypes.create_string_buffer(520)
    vk.vkGetPhysicalDeviceMemoryProperties(device, raw)
    count = struct.unpack_from("<I", raw, 260)[0]
    heaps = (struct.unpack_from("<QI", raw, 264 + 16 * i) for i in range(count))
    return [{"bytes": n, "is_device_local": bool(flags & DEVICE_LOCAL)} for n, flags in heaps]


def _text(raw: bytes, at: int) -> str:
    return raw[at : at + 256].split(b"\0")[0].decode(errors="replace")
