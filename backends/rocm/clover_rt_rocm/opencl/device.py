"""The OpenCL device: buffers, copies, and one in-order queue that steps only add to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl

from clover_rt.backend import Buffer, Device, Memory, Step, Tensor, Usage
from clover_rt.errors import CloverError, DeviceLost, OutOfMemory
from clover_rt.spec import Precision
from clover_rt_rocm import variables
from clover_rt_rocm.opencl.program import Programs

Array = npt.NDArray[Any]
# vector loads at the end of an operand may read up to this many bytes past it
PADDING = 64
# uploads up to this size are copied and not waited for
SMALL = 1 << 20
REMEDIES = (
    "lower --context, or use --precision fast, which halves the KV cache; quantize the checkpoint "
    "to q4 with `clover-rt quantize`; or end other programs on the device"
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


class ClBuffer(Buffer):
    """Zeroed device memory."""

    def __init__(self, nbytes: int, handle: Any) -> None:
        self.nbytes = nbytes
        self.handle = handle


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its arguments set, and its grid. `keep` holds what the arguments point to."""

    op: str
    kernel: Any
    grid: tuple[int, ...]
    group: tuple[int, ...]
    keep: tuple[Any, ...]


class Launches:
    """A step: kernels that are added to the queue in order."""

    def __init__(self, device: ClDevice, launches: Sequence[Launch]) -> None:
        self.device = device
        self.launches = tuple(launches)

    def __call__(self) -> None:
        self.device.submit(self.launches)


class ClDevice(Device):
    """One OpenCL device, in float32.

    largest  bytes of the largest buffer, where it is to be less than the driver's limit
    """

    def __init__(self, device: Any, largest: int = 0) -> None:
        # made here: the kernels' modules import this one
        from clover_rt_rocm.opencl.kernels import make_kernels

        self.handle = device
        self.name = device.name.strip()
        self.alignment = max(64, device.mem_base_addr_align // 8)
        limit = int(device.max_mem_alloc_size) - 2 * PADDING
        self.max_binding_bytes = min(limit, largest) if largest else limit
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context, device)
        self.programs = Programs(self.context, device)
        self.kernels = make_kernels(self)
        self.used = 0
        self.last = "none"
        self._waiting: list[Any] = []
        self._live: dict[int, ClBuffer] = {}

    def alloc(self, nbytes: int, usage: Usage) -> ClBuffer:
        return self.allocate(nbytes, f"{usage.value} memory")

    def allocate(self, nbytes: int, what: str) -> ClBuffer:
        """Return zeroed memory; the error of one that does not fit names what it is for."""
        free = self.memory().free
        if nbytes > self.max_binding_bytes:
            raise self.no_memory(what, nbytes, free, "no buffer may be that large")
        if nbytes > free:
            raise self.no_memory(what, nbytes, free, "the device has less left")
        size = -(-nbytes // PADDING) * PADDING + PADDING
        try:
            handle = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size)
            # drivers allocate at the first use: let it be here
            cl.enqueue_fill_buffer(self.queue, handle, np.zeros(1, np.uint32), 0, size)
        except cl.Error as error:
            if error.code in (*NO_MEMORY, _STATUS.OUT_OF_RESOURCES):
                raise self.no_memory(what, nbytes, free, str(error)) from error
            raise
        self.used += nbytes
        buffer = ClBuffer(nbytes, handle)
        self._live[id(buffer)] = buffer
        return buffer

    def free(self, buffer: Buffer) -> None:
        assert isinstance(buffer, ClBuffer), f"a buffer of another device on {self.name}"
        if buffer.handle is not None:
            self.used -= buffer.nbytes
            del self._live[id(buffer)]
            buffer.handle.release()
            buffer.nbytes, buffer.handle = 0, None

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        with self.told("copy"):
            cl.enqueue_copy(
                self.queue,
                _inside(dst, dst_offset, n),
                _inside(src, src_offset, n),
                dst_offset=dst_offset,
                src_offset=src_offset,
                byte_count=n,
            )

    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        """Copy to the device; what is small is not waited for, so that a pass waits only once."""
        raw = src.reshape(-1).view(np.uint8)
        if raw.nbytes == 0:
            return
        small = raw.nbytes <= SMALL
        with self.told("upload"):
            event = cl.enqueue_copy(
                self.queue,
                _inside(dst, offset, raw.nbytes),
                raw.copy() if small else raw,
                dst_offset=offset,
                is_blocking=not small,
            )
        if small:
            # the event holds the copy, and waits for it where it is dropped too early
            self._waiting.append(event)
        else:
            self._waiting.clear()

    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        raw = dst.reshape(-1).view(np.uint8)
        if raw.nbytes == 0:
            return
        with self.told("download"):
            handle = _inside(src, offset, raw.nbytes)
            cl.enqueue_copy(self.queue, raw, handle, src_offset=offset, is_blocking=True)
        self._waiting.clear()

    def synchronize(self) -> None:
        with self.told("wait"):
            self.queue.finish()
        self._waiting.clear()

    def memory(self) -> Memory:
        """Return the device's memory; free is what this process has not taken of it."""
        total = int(self.handle.global_mem_size)
        return Memory(total, max(total - self.used, 0))

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        """Rows are float32 always; `fast` halves the KV cache."""
        return ("float32", "bfloat16" if precision is Precision.FAST else "float32")

    def capture(self, steps: Sequence[Step]) -> Step:
        """Return one step that adds the kernels of all to the queue and sends them off."""
        launches: list[Launch] = []
        for step in steps:
            if not isinstance(step, Launches):
                return super().capture(steps)
            launches += step.launches
        return Launches(self, launches)

    def submit(self, launches: Sequence[Launch]) -> None:
        queue, enqueue = self.queue, cl.enqueue_nd_range_kernel
        launch = None
        try:
            for launch in launches:
                enqueue(queue, launch.kernel, launch.grid, launch.group)
            queue.flush()
        except cl.Error as error:
            raise self.failure(launch.op if launch else "none", error) from error
        if launch is not None:
            self.last = launch.op

    def view(self, tensor: Tensor) -> Any:
        """Return an operand as a buffer that a kernel can be given."""
        assert isinstance(tensor.buffer, ClBuffer), f"a buffer of another device on {self.name}"
        if tensor.offset == 0:
            return tensor.buffer.handle
        return tensor.buffer.handle.get_sub_region(tensor.offset, max(tensor.nbytes, 1))

    @contextmanager
    def told(self, doing: str) -> Iterator[None]:
        """Tell what the driver raises as a typed error where it is known what it means."""
        try:
            yield
        except cl.Error as error:
            raise self.failure(f"{self.last}, then {doing}", error) from error

    def failure(self, op: str, error: Any) -> Exception:
        """Return the error of something that was submitted and failed."""
        if error.code in NO_MEMORY:
            return OutOfMemory(
                what=f"{self.name} ran out of memory in {op}",
                evidence=f"this process holds {self.used} of "
                f"{self.handle.global_mem_size} bytes: {error}",
                fix=REMEDIES,
                code="CRT-3241",
            )
        if error.code in LOST:
            return DeviceLost.of(self.name, op, f"{error}; {variables.told()}")
        return error  # type: ignore[no-any-return]

    def no_memory(self, what: str, nbytes: int, free: int, why: str) -> OutOfMemory:
        """Return the error of an allocation: what it is for, all sizes, what can be done."""
        return OutOfMemory(
            what=f"{what} was to get {nbytes} bytes on {self.name}",
            evidence=f"requested {nbytes} bytes, free {free} of "
            f"{self.handle.global_mem_size}, largest buffer {self.max_binding_bytes}: {why}",
            fix=REMEDIES,
            code="CRT-3242",
        )

    def close(self) -> None:
        """Wait for the queue and free everything; a device that is lost is only let go."""
        with suppress(cl.Error):
            self.queue.finish()
        self._waiting.clear()
        for buffer in list(self._live.values()):
            self.free(buffer)


def _inside(buffer: Buffer, offset: int, n: int) -> Any:
    """Return a buffer's handle; the bytes must lie inside it, which its padding would hide."""
    assert isinstance(buffer, ClBuffer), "a buffer of another device"
    if offset < 0 or n < 0 or offset + n > buffer.nbytes:
        raise CloverError(
            what=f"bytes {offset} .. {offset + n} of an OpenCL buffer were to be copied",
            evidence=f"the buffer has {buffer.nbytes} bytes",
            fix="report this as a bug of the caller, with the command that showed it",
            code="CRT-9032",
        )
    return buffer.handle
