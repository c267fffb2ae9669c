"""What a driver reports, told as errors that say where and what to do."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from clover_rt.backend import Usage
from clover_rt.cache import cache_folder
from clover_rt.errors import CompileError, DeviceLost, OutOfMemory
from clover_rt.spec import Signature
from clover_rt_rocm import variables

if TYPE_CHECKING:
    from clover_rt_rocm.opencl.device import ClDevice

# what helps most comes first
STATE_REMEDIES = (
    "lower --context, or use --precision fast, which halves the KV cache; quantize the checkpoint "
    "to q4 with `clover-rt quantize`; or end other programs on the device"
)
WEIGHT_REMEDIES = (
    "quantize the checkpoint to q4 with `clover-rt quantize`; lower --context, or use --precision "
    "fast, which halves the KV cache; or end other programs on the device"
)
# bytes that a compiler needs for what it writes beside a program, at the least
LEAST_ROOM = 1 << 20
_STATUS = cl.status_code
NO_MEMORY = (
    _STATUS.MEM_OBJECT_ALLOCATION_FAILURE,
    _STATUS.OUT_OF_HOST_MEMORY,
    _STATUS.INVALID_BUFFER_SIZE,
)
# -9999 is what drivers that have no code for it say of an access that faulted
LOST = (
    _STATUS.DEVICE_NOT_AVAILABLE,
    _STATUS.OUT_OF_RESOURCES,
    _STATUS.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST,
    _STATUS.INVALID_COMMAND_QUEUE,
    -9999,
)


def failure(device: ClDevice, doing: str, error: Any) -> Exception:
    """Return the error of something that was submitted and failed; others are returned as given."""
    last, driver = _last(device), _driver(device)
    if error.code in NO_MEMORY:
        return OutOfMemory(
            what=f"{device.name} ran out of memory in {doing}",
            evidence=f"this process holds {device.used} of {device.memory().total} bytes; "
            f"last operation {last}; {driver}: {error}",
            fix=STATE_REMEDIES,
            code="CRT-3241",
        )
    if error.code in LOST:
        return DeviceLost(
            what=f"{device.name} stopped answering",
            evidence=f"in {doing}; last operation {last}; {driver}: {error}",
            fix="look into the system log, reset the card, and start the program anew; --profile "
            "runs a pass step by step and waits after each, so that the failure is charged to the "
            "operation that made it; a lower --context or --block-size makes each of them shorter",
            code="CRT-3320",
        )
    return error  # type: ignore[no-any-return]


def no_memory(
    device: ClDevice, what: str, nbytes: int, why: str, usage: Usage | None
) -> OutOfMemory:
    """Return the error of an allocation; usage None: of a weight."""
    memory = device.memory()
    return OutOfMemory(
        what=f"{what} was to get {nbytes} bytes on {device.name}",
        evidence=f"requested {nbytes} bytes, free {memory.free} of {memory.total}, "
        f"largest buffer {device.max_binding_bytes}: {why}",
        fix=STATE_REMEDIES if usage is Usage.STATE else WEIGHT_REMEDIES,
        code="CRT-3242",
    )


def no_program(device: ClDevice, name: str, sig: Signature, error: Exception) -> CompileError:
    """Return the error of a kernel that did not compile; the driver's has the compiler's log."""
    driver, first = _driver(device), _room()
    return CompileError(
        what=f"kernel {name} of {sig.described()} did not compile for {device.name}",
        evidence=f"{driver}; the compiler said:\n{_once(str(error))}",
        fix=f"{first}update the device's driver, or use --backend cpu",
        code="CRT-3540",
    )


def _room() -> str:
    """Return what to do first where a folder that compilers write to has no room, else ""."""
    for name, folder in _folders().items():
        there = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=there) as file:
                file.write(bytes(LEAST_ROOM))
        except OSError as error:
            return (
                f"make room in {folder}, which the compiler writes to ({error.strerror}), or set "
                f"{name} to a folder that can be written; if that is not enough, "
            )
    return ""


def _folders() -> dict[str, Path]:
    """Return the folders that compilers write to, by the variable that moves each."""
    found = {"XDG_CACHE_HOME": cache_folder("").parent}
    if os.name == "posix":
        found["TMPDIR"] = Path("/tmp")
    for name in ("POCL_CACHE_DIR", "TMPDIR"):
        if os.environ.get(name):
            found[name] = Path(os.environ[name])
    return {name: path.absolute() for name, path in found.items()}


def _once(text: str) -> str:
    """Return a driver's text without what pyopencl repeats in its first line."""
    first, _, log = text.partition("\n")
    return "\n".join((" - ".join(dict.fromkeys(first.split(" - "))), log))


def _last(device: ClDevice) -> str:
    if not device.submitted:
        return "none"
    since = (time.perf_counter() - device.submitted_s) * 1e3
    return f"{device.submitted}, submitted {since:.0f} ms before"


def _driver(device: ClDevice) -> str:
    return f"{device.driver}, {variables.told()}"
