"""Ask the OpenCL loader for platforms and devices, through ctypes; runs in a child process."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
from pathlib import Path
from typing import Any

NOT_FOUND = -1001
ALL_DEVICES = 0xFFFFFFFF
KINDS = {2: "cpu", 4: "gpu", 8: "accelerator"}
PLATFORM = {"name": 0x0902, "version": 0x0901, "vendor": 0x0903}
TEXTS = {"name": 0x102B, "driver": 0x102D, "version": 0x102F, "extensions": 0x1030}
# cl_uint, cl_ulong and size_t values by name: (id, type)
NUMBERS: dict[str, tuple[int, Any]] = {
    "type": (0x1000, ctypes.c_uint64),
    "compute_units": (0x1002, ctypes.c_uint32),
    "max_work_group": (0x1004, ctypes.c_size_t),
    "max_alloc": (0x1010, ctypes.c_uint64),
    "memory": (0x101F, ctypes.c_uint64),
    "local_memory": (0x1023, ctypes.c_uint64),
}
PCI_KHR, PCI_AMD, NV_BUS, NV_SLOT, NV_DOMAIN = 0x410F, 0x4037, 0x4008, 0x4009, 0x400A


def ask() -> dict[str, Any]:
    """Return the loader's name and every platform with its devices."""
    name, library = loader()
    if library is None:
        return {"loader": "", "platforms": []}
    count = ctypes.c_uint32()
    status = library.clGetPlatformIDs(0, None, ctypes.byref(count))
    if status not in (0, NOT_FOUND):
        return {"loader": name, "platforms": [], "problem": f"clGetPlatformIDs: error {status}"}
    ids = (ctypes.c_void_p * count.value)()
    if count.value:
        library.clGetPlatformIDs(count, ids, None)
    return {"loader": name, "platforms": [_platform(library, p) for p in ids if p]}


def loader() -> tuple[str, Any]:
    """Return the loader: the system's, else the one that pyopencl brings."""
    names = [ctypes.util.find_library("OpenCL"), "libOpenCL.so.1"]
    spec = importlib.util.find_spec("pyopencl")
    if spec is not None and spec.origin is not None:
        names += _bundled(Path(spec.origin).parent)
    for name in names:
        library = _load(name) if name else None
        if library is None:
            continue
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        library.clGetPlatformInfo.argtypes = [pointer, u32, ctypes.c_size_t, pointer, pointer]
        library.clGetDeviceInfo.argtypes = [pointer, u32, ctypes.c_size_t, pointer, pointer]
        library.clGetDeviceIDs.argtypes = [pointer, ctypes.c_uint64, u32, pointer, pointer]
        library.clGetPlatformIDs.argtypes = [u32, pointer, pointer]
        return name or "", library
    return "", None


def _bundled(package: Path) -> list[str]:
    """Return the loaders inside pyopencl, made ready as its import would."""
    # its loader crashes without this, which pyopencl sets when it is imported
    os.environ.setdefault("PYOPENCL_HOME", str(package))
    folder = package / ".libs"
    for icd in folder.glob("*.icd"):
        # it is named without its folder: the loader finds it only where it is loaded already
        _load(str(folder / icd.read_text().strip()))
    return [str(p) for p in sorted(folder.glob("libOpenCL*"))]


def _load(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _platform(library: Any, handle: int) -> dict[str, Any]:
    about: dict[str, Any] = {
        key: _text(library.clGetPlatformInfo, handle, code) for key, code in PLATFORM.items()
    }
    count = ctypes.c_uint32()
    # a platform without devices says so with an error; that is no problem of its own
    if library.clGetDeviceIDs(handle, ALL_DEVICES, 0, None, ctypes.byref(count)):
        return {**about, "devices": []}
    ids = (ctypes.c_void_p * count.value)()
    library.clGetDeviceIDs(handle, ALL_DEVICES, count, ids, None)
    return {**about, "devices": [_device(library, d) for d in ids if d]}


def _device(library: Any, handle: int) -> dict[str, Any]:
    get = library.clGetDeviceInfo
    out: dict[str, Any] = {key: _text(get, handle, code) for key, code in TEXTS.items()}
    for key, (code, kind) in NUMBERS.items():
        value = kind()
        out[key] = 0
        if get(handle, code, ctypes.sizeof(value), ctypes.byref(value), None) == 0:
            out[key] = value.value
    extensions = out.pop("extensions").split()
    bits = int(out.pop("type"))
    out["kind"] = next((name for bit, name in KINDS.items() if bits & bit), "other")
    out["fp16"] = "cl_khr_fp16" in extensions
    out["subgroups"] = any("subgroups" in e for e in extensions)
    out["integer_dot"] = "cl_khr_integer_dot_product" in extensions
    out["id"] = _address(get, handle, extensions)
    return out


def _address(get: Any, handle: int, extensions: list[str]) -> str:
    """Return the PCI address where an extension tells it."""
    if "cl_khr_pci_bus_info" in extensions:
        words = (ctypes.c_uint32 * 4)()
        if get(handle, PCI_KHR, 16, words, None) == 0:
            return f"{words[0]:04x}:{words[1]:02x}:{words[2]:02x}.{words[3]}"
    if "cl_amd_device_attribute_query" in extensions:
        raw = (ctypes.c_uint8 * 24)()
        if get(handle, PCI_AMD, 24, raw, None) == 0:
            return f"0000:{raw[21]:02x}:{raw[22]:02x}.{raw[23]}"
    if "cl_nv_device_attribute_query" in extensions:
        bus, slot, domain = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32()
        get(handle, NV_DOMAIN, 4, ctypes.byref(domain), None)
        if get(handle, NV_BUS, 4, ctypes.byref(bus), None) == 0:
            get(handle, NV_SLOT, 4, ctypes.byref(slot), None)
            at = slot.value
            return f"{domain.value:04x}:{bus.value:02x}:{at >> 3:02x}.{at & 7}"
    return ""


def _text(get: Any, handle: int, code: int) -> str:
    size = ctypes.c_size_t()
    if get(handle, code, 0, None, ctypes.byref(size)) or not size.value:
        return ""
    buffer = ctypes.create_string_buffer(size.value)
    get(handle, code, size, buffer, None)
    return buffer.value.decode(errors="replace").strip()
