"""What a driver reports, told as errors that say where and what to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from clover_rt.backend import Usage
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
    driver = _driver(device)
    return CompileError(
        what=f"kernel {name} of {sig.described()} did not compile for {device.name}",
        evidence=f"{driver}; the compiler said:\n{error}",
        fix="update the device's driver, or use --backend cpu",
        code="CRT-3540",
    )


def _last(device: ClDevice) -> str:
    if not device.submitted:
        return "none"
    since = (time.perf_counter() - device.submitted_s) * 1e3
    return f"{device.submitted}, submitted {since:.0f} ms before"


def _driver(device: ClDevice) -> str:
    return f"{device.driver}, {variables.told()}"
