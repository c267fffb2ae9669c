"""Find OpenCL devices; what is not an AMD GPU is opened only by its name."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from clover_rt.backend import Device, DeviceInfo, Probe
from clover_rt.errors import BackendUnavailable

INSTALL = 'pip install "clover-rt[opencl]"'
BROKEN = "pip install --force-reinstall pyopencl"
DRIVER = (
    "install your card's OpenCL driver (AMD: the ROCm or Adrenalin runtime, or Mesa's rusticl); "
    "`clover-rt doctor` lists what the loader sees"
)
AMD = 0x1002


def probe() -> Probe:
    """Return the OpenCL devices of this machine, or what is missing."""
    if importlib.util.find_spec("pyopencl") is None:
        return Probe(problem="the package pyopencl is not installed", fix=INSTALL)
    problem = _broken()
    if problem:
        return Probe(problem=problem, fix=BROKEN)
    try:
        listed = platforms()
    # a loader or a driver that is broken must not end the program
    except Exception as error:
        problem = f"devices cannot be asked for: {type(error).__name__}: {error}"
        return Probe(problem=problem, fix=DRIVER)
    found = [d for _, devices in listed for d in devices]
    if not found:
        names = ", ".join(name for name, _ in listed)
        problem = f"no OpenCL device; platforms: {names}" if names else "no OpenCL platform"
        return Probe(problem=problem, fix=DRIVER)
    return Probe(devices=tuple(describe(i, device) for i, device in enumerate(found)))


def describe(index: int, device: Any) -> DeviceInfo:
    """Return what is told of an OpenCL device; it is `opencl:INDEX`. Nothing is run on it."""
    from clover_rt_rocm.opencl import capabilities

    is_gpu = _is_gpu(device)
    kind = "integrated" if device.host_unified_memory else "discrete"
    return DeviceInfo(
        id=f"opencl:{index}",
        name=device.name.strip(),
        kind=kind if is_gpu else "cpu",
        memory_bytes=device.global_mem_size,
        is_software=not is_gpu,
        notes={
            "engine": "opencl",
            "platform": f"{device.platform.name.strip()}, {device.platform.version.strip()}",
            "driver": device.driver_version.strip(),
            **capabilities.announced(device),
        },
        only_by_name="it is not an AMD GPU" if is_gpu and not is_amd_gpu(device) else "",
    )


def is_amd_gpu(device: Any) -> bool:
    return _is_gpu(device) and (device.vendor_id == AMD or "AMD" in device.vendor)


def open_device(info: DeviceInfo) -> Device:
    """Open the device with an id `opencl:N`."""
    from clover_rt_rocm.opencl.device import ClDevice

    index = int(info.id.partition(":")[2])
    found = [d for _, devices in platforms() for d in devices]
    if index >= len(found):
        raise BackendUnavailable(
            what=f"device {info.id} was to be opened",
            evidence=f"there are {len(found)} OpenCL devices now",
            fix="run `clover-rt backends` again: a driver or a card has gone",
            code="CRT-3012",
        )
    return ClDevice(found[index])


def platforms() -> list[tuple[str, list[Any]]]:
    """Return (name, devices) of each platform; one without devices is normal."""
    cl = _library()
    try:
        listed = cl.get_platforms()
    except cl.LogicError as error:
        if error.code == cl.status_code.PLATFORM_NOT_FOUND_KHR:
            return []
        raise
    out = []
    for platform in listed:
        try:
            devices = platform.get_devices()
        except cl.Error:
            devices = []
        out.append((platform.name.strip(), devices))
    return out


def _library() -> Any:
    # its own cache of programs may wait a minute for the lock of a process that has died
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    import pyopencl as cl

    return cl


def _broken() -> str:
    """Return why pyopencl, which is there, cannot be used; "" if it can."""
    try:
        if hasattr(_library(), "get_platforms"):
            return ""
    # what is damaged raises what it likes
    except Exception as error:
        return f"pyopencl cannot be imported: {type(error).__name__}: {error}"
    return "pyopencl is empty"


def _is_gpu(device: Any) -> bool:
    import pyopencl as cl

    return bool(device.type & cl.device_type.GPU)
