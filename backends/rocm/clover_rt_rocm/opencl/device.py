"""The OpenCL device: buffers, copies, and one in-order queue that steps only add to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl

from clover_rt.backend import Buffer, Device, DeviceInfo, Memory, Step, Tensor, Usage
from clover_rt.errors import CloverError
from clover_rt.spec import Precision, Signature
from clover_rt_rocm.opencl.capabilities import PLAIN, Capabilities, probe
from clover_rt_rocm.opencl.failures import (
    NO_MEMORY,
    failure,
    no_memory,
    no_program,
)
from clover_rt_rocm.opencl.program import Programs

Array = npt.NDArray[Any]
# vector loads at the end of an operand may read up to this many bytes past it
PADDING = 64
# uploads up to this size are copied and not waited for
SMALL = 1 << 20


class ClBuffer(Buffer):
    """Zeroed device memory."""

    def __init__(self, nbytes: int, handle: Any) -> None:
        self.nbytes = nbytes
        self.handle = handle


@dataclass(slots=True, eq=False)
class Launch:
    """A kernel's call.

    sig        the operation that it is part of
    source     of its program
    arguments  as the driver takes them; they keep alive what they point to
    grid       work-items along each axis, in groups of `group`
    kernel     compiled, with its arguments set; None before the first run
    """

    sig: Signature
    source: str
    name: str
    arguments: tuple[Any, ...]
    grid: tuple[int, ...]
    group: tuple[int, ...]
    kernel: Any = None


class Launches:
    """A step: kernels that are added to the queue in order, and compiled before the first."""

    def __init__(self, device: ClDevice, launches: Sequence[Launch]) -> None:
        self.device = device
        self.launches = tuple(launches)

    @cached_property
    def about(self) -> str:
        """What goes to the device at once, for the message if it is lost."""
        first, last = (self.launches[i].sig.described() for i in (0, -1))
        if len(self.launches) == 1:
            return first
        return f"one of {len(self.launches)} launches from {first} to {last}"

    def __call__(self) -> None:
        if self.launches:
            self.device.submit(self)


class ClDevice(Device):
    """One OpenCL device; rows are float32.

    largest       bytes of the largest buffer, where it is to be less than the driver's limit
    capabilities  what its kernels may use; what it is found to have where none are given
    submitted     what went to the device last, and `submitted_s` when
    """

    capabilities = PLAIN
    _info: DeviceInfo | None = None

    def __init__(
        self, device: Any, largest: int = 0, capabilities: Capabilities | None = None
    ) -> None:
        # made here: the kernels' modules import this one
        from clover_rt_rocm.opencl.kernels import make_kernels

        self.handle = device
        self.name = device.name.strip()
        self.driver = f"{device.platform.version.strip()}, driver {device.driver_version.strip()}"
        self.capabilities = probe(device) if capabilities is None else capabilities
        self.alignment = max(64, device.mem_base_addr_align // 8)
        limit = int(device.max_mem_alloc_size) - 2 * PADDING
        self.max_binding_bytes = min(limit, largest) if largest else limit
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context, device)
        self.programs = Programs(self.context, device, self.capabilities.standard)
        self.kernels = make_kernels(self)
        self.used = 0
        self.submitted, self.submitted_s = "", 0.0
        self._waiting: list[Any] = []
        self._live: dict[int, ClBuffer] = {}

    @property
    def info(self) -> DeviceInfo | None:
        """What the probe said of it, with what its capabilities came to when they were tried."""
        return self._info

    @info.setter
    def info(self, info: DeviceInfo | None) -> None:
        self._info = info
        if info is not None:
            notes, told = {**info.notes, **self.capabilities.notes}, self.capabilities.told
            if told and "chosen" in notes:
                notes["chosen"] += f"; {told}"
            self._info = replace(info, notes=notes)

    def alloc(self, nbytes: int, usage: Usage) -> ClBuffer:
        return self.allocate(nbytes, f"{usage.value} memory", usage)

    def allocate(self, nbytes: int, what: str, usage: Usage | None = None) -> ClBuffer:
        """Return zeroed memory; the error of what does not fit names it. usage None: a weight."""
        if nbytes > self.max_binding_bytes:
            raise no_memory(self, what, nbytes, "no buffer may be that large", usage)
        if nbytes > self.memory().free:
            raise no_memory(self, what, nbytes, "the device has less left", usage)
        size = -(-nbytes // PADDING) * PADDING + PADDING
        try:
            handle = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size)
            # drivers allocate at the first use: let it be here
            cl.enqueue_fill_buffer(self.queue, handle, np.zeros(1, np.uint32), 0, size)
        except cl.Error as error:
            if error.code in (*NO_MEMORY, cl.status_code.OUT_OF_RESOURCES):
                raise no_memory(self, what, nbytes, str(error), usage) from error
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

    def submit(self, step: Launches) -> None:
        """Add a step's kernels to the queue; what is not compiled yet is, all of it first."""
        self.compile(step.launches)
        queue, enqueue = self.queue, cl.enqueue_nd_range_kernel
        self.submitted, self.submitted_s = step.about, time.perf_counter()
        with self.told("submit"):
            for launch in step.launches:
                enqueue(queue, launch.kernel, launch.grid, launch.group)
            queue.flush()

    def compile(self, launches: Sequence[Launch]) -> None:
        """Make the kernels that are not made yet, told to `on_progress` as "compiling NAME"."""
        still = [launch for launch in launches if launch.kernel is None]
        fresh: dict[str, Launch] = {}
        for launch in still:
            if launch.source not in self.programs.built:
                fresh.setdefault(launch.source, launch)
        for done, launch in enumerate(fresh.values()):
            self._tell(done, len(fresh), f"compiling {launch.name}")
            try:
                self.programs.build(launch.source)
            except cl.Error as error:
                raise no_program(self, launch.name, launch.sig, error) from error
        if fresh:
            self._tell(len(fresh), len(fresh), "compiling")
        for launch in still:
            with self.told(f"making kernel {launch.name}"):
                kernel = cl.Kernel(self.programs.built[launch.source], launch.name)
                for i, value in enumerate(launch.arguments):
                    kernel.set_arg(i, value)
            launch.kernel = kernel

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
            raise failure(self, doing, error) from error

    def close(self) -> None:
        """Wait for the queue and free everything; a device that is lost is only let go."""
        with suppress(cl.Error):
            self.queue.finish()
        self._waiting.clear()
        for buffer in list(self._live.values()):
            self.free(buffer)

    def _tell(self, done: int, total: int, what: str) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total, what)


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
