"""The Vulkan device: buffers, copies, and steps that are recorded once and submitted often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Buffer, Device, Memory, Step, Tensor, Usage
from clover_rt.errors import CloverError, CompileError, DeviceLost, OutOfMemory
from clover_rt.spec import Format, Precision
from clover_rt_vulkan.driver import Binding, Dispatch, Driver, DriverFailure, Shape, Trouble
from clover_rt_vulkan.library import Library, Shader

Array = npt.NDArray[Any]
# formats as the shaders number them
FORMATS = {Format.F32: 0, Format.F16: 1, Format.BF16: 2, Format.Q8: 3, Format.Q4: 4}
# what a driver adds to a buffer so that its end is a whole number of quads
PADDING = 32
REMEDIES = (
    "lower --context, or use --precision fast, which halves the KV cache; quantize the checkpoint "
    "to q4 with `clover-rt quantize`; or end other programs on the device"
)


class VulkanBuffer(Buffer):
    """Zeroed device memory; it goes when neither this nor a recorded step refers to it."""

    def __init__(self, nbytes: int, memory: Any) -> None:
        self.nbytes = nbytes
        self.memory = memory


class Launches:
    """A step: dispatches in order, recorded when it is first called.

    layers  index of the first dispatch of each layer
    """

    def __init__(
        self, device: VulkanDevice, dispatches: Sequence[Dispatch], layers: Sequence[int] = (0,)
    ) -> None:
        self.device = device
        self.dispatches = tuple(dispatches)
        self.layers = tuple(layers)
        self.recording: Any = None

    def __call__(self) -> None:
        self.device.submit(self)


class VulkanDevice(Device):
    """One Vulkan device, in float32.

    largest  bytes of the largest buffer, where it is to be less than the driver's limit
    """

    def __init__(
        self, name: str, driver: Driver, library: Library | None = None, largest: int = 0
    ) -> None:
        # made here: the kernels' modules import this one
        from clover_rt_vulkan.kernels import make_kernels

        self.name = name
        self.driver = driver
        self.library = Library() if library is None else library
        self.limits = driver.limits
        self.alignment = max(64, self.limits.alignment)
        limit = min(self.limits.binding // 16 * 16, self.limits.allocation - PADDING)
        self.max_binding_bytes = min(limit, largest) if largest else limit
        self.kernels = make_kernels(self)
        self.last = "none"

    def alloc(self, nbytes: int, usage: Usage) -> VulkanBuffer:
        return self.allocate(nbytes, f"{usage.value} memory")

    def allocate(self, nbytes: int, what: str) -> VulkanBuffer:
        """Return zeroed memory; the error of one that does not fit names what it is for."""
        if nbytes > self.max_binding_bytes:
            raise self._no_memory(what, nbytes, "no buffer may be that large")
        try:
            return VulkanBuffer(nbytes, self.driver.buffer(nbytes))
        except DriverFailure as failure:
            if failure.trouble is Trouble.MEMORY:
                raise self._no_memory(what, nbytes, str(failure)) from failure
            raise self._failed(f"{self.last}, then an allocation", failure) from failure

    def free(self, buffer: Buffer) -> None:
        assert isinstance(buffer, VulkanBuffer), f"a buffer of another device on {self.name}"
        buffer.nbytes, buffer.memory = 0, None

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        to, of = _inside(dst, dst_offset, n), _inside(src, src_offset, n)
        if n:
            with self._told("copy"):
                self.driver.copy(to, dst_offset, of, src_offset, n)

    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        """Copy to the device; it is not waited for, so that a pass waits only once."""
        raw = src.reshape(-1).view(np.uint8)
        memory = _inside(dst, offset, raw.nbytes)
        with self._told("upload"):
            self.driver.upload(memory, offset, raw)

    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        raw = dst.reshape(-1).view(np.uint8)
        memory = _inside(src, offset, raw.nbytes)
        with self._told("download"):
            self.driver.download(memory, offset, raw)

    def synchronize(self) -> None:
        with self._told("wait"):
            self.driver.wait()

    def memory(self) -> Memory:
        with self._told("wait"):
            return Memory(*self.driver.memory())

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        """Rows are float32 always; `fast` halves the KV cache."""
        return ("float32", "bfloat16" if precision is Precision.FAST else "float32")

    def capture(self, steps: Sequence[Step]) -> Step:
        """Return one step that runs the dispatches of all; a long one is cut between any two."""
        dispatches: list[Dispatch] = []
        starts: list[int] = []
        for step in steps:
            if not isinstance(step, Launches):
                return super().capture(steps)
            starts.append(len(dispatches))
            dispatches += step.dispatches
        return Launches(self, dispatches, starts)

    def capture_layers(self, layers: Sequence[Sequence[Step]]) -> Step:
        """Return one step that runs the dispatches of all; a long one is cut between layers."""
        captured = super().capture_layers(layers)
        if isinstance(captured, Launches):
            sizes = [
                sum(len(s.dispatches) for s in layer if isinstance(s, Launches)) for layer in layers
            ]
            captured.layers = tuple(accumulate(sizes[:-1], initial=0))
        return captured

    def tally(self) -> dict[str, int]:
        """Return all submissions, passes, and those of them that took several submissions."""
        counts = self.driver.counts
        return {
            "submissions": counts.submissions,
            "device passes": counts.passes,
            "cut passes": counts.cut_passes,
        }

    def trials(self) -> dict[str, Callable[[], None]]:
        """Return the compilation of each shader, once for each format of its weights."""
        out: dict[str, Callable[[], None]] = {}
        for name, shader in self.library.shaders.items():
            if shader.requires <= self.driver.features:
                for label, constants in _forms(shader):
                    out[f"shader {name}{label}"] = partial(self._compile, shader, constants)
        return out

    def submit(self, launches: Launches) -> None:
        if not launches.dispatches:
            return
        if launches.recording is None:
            self._record(launches)
        op = launches.dispatches[-1].op
        try:
            self.driver.submit(launches.recording)
        except DriverFailure as failure:
            raise self._failed(op, failure) from failure
        self.last = op

    def pipeline(self, shader: Shader, constants: dict[int, int]) -> Any:
        """Return a compiled shader; CompileError with the driver's word."""
        shape = Shape(len(shader.buffers), 4 * len(shader.push))
        code = self.library.code(shader.name)
        try:
            return self.driver.pipeline(code, shape, constants)
        except DriverFailure as failure:
            if failure.trouble is Trouble.LOST:
                raise self._failed(f"{self.last}, then a compilation", failure) from failure
            raise CompileError.of(self.name, shader.name, str(failure)) from failure

    def binding(self, value: Tensor | VulkanBuffer, is_written: bool) -> Binding:
        """Return what a shader sees of an operand: whole quads from its start on."""
        if isinstance(value, VulkanBuffer):
            return Binding(value.memory, 0, _quads(value.nbytes), is_written)
        assert isinstance(value.buffer, VulkanBuffer), f"a buffer of another device on {self.name}"
        return Binding(value.buffer.memory, value.offset, _quads(value.nbytes), is_written)

    def close(self) -> None:
        """Wait for the device and free everything; a device that is lost is only let go."""
        self.driver.close()

    def _compile(self, shader: Shader, constants: dict[int, int]) -> None:
        """Compile a shader as each driver does, some only when they record."""
        pipeline = self.pipeline(shader, constants)
        small = self.allocate(1024, "a trial")
        bindings = tuple(self.binding(small, b in shader.written) for b in shader.buffers)
        push = bytes(4 * len(shader.push))
        self._record(Launches(self, [Dispatch(shader.name, pipeline, (1, 1, 1), bindings, push)]))

    def _record(self, launches: Launches) -> None:
        if launches.dispatches:
            with self._told("record"):
                launches.recording = self.driver.record(launches.dispatches, launches.layers)

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Tell what the driver reports as a typed error where it is known what it means."""
        try:
            yield
        except DriverFailure as failure:
            raise self._failed(f"{self.last}, then {doing}", failure) from failure

    def _failed(self, op: str, failure: DriverFailure) -> Exception:
        """Return the error of something that was submitted and failed."""
        match failure.trouble:
            case Trouble.LOST:
                return DeviceLost.of(self.name, op, str(failure))
            case Trouble.MEMORY:
                return OutOfMemory(
                    what=f"{self.name} ran out of memory in {op}",
                    evidence=str(failure),
                    fix=REMEDIES,
                    code="CRT-3251",
                )
            case Trouble.COMPILE:
                return CompileError.of(self.name, failure.doing, failure.cause)
        return failure

    def _no_memory(self, what: str, nbytes: int, why: str) -> OutOfMemory:
        """Return the error of an allocation: what it is for, all sizes, what can be done."""
        total, free = self.driver.memory()
        return OutOfMemory(
            what=f"{what} was to get {nbytes} bytes on {self.name}",
            evidence=f"requested {nbytes} bytes, free {free} of {total}, "
            f"largest buffer {self.max_binding_bytes}: {why}",
            fix=REMEDIES,
            code="CRT-3252",
        )


def _forms(shader: Shader) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield (label, constants) of a shader: one for each format, or one alone."""
    formats = [key for name, key in shader.constants.items() if name.endswith("_FORMAT")]
    if not formats:
        yield "", {}
        return
    for fmt, number in FORMATS.items():
        # shaders for rows in 8 bits take quantised weights only
        if fmt.is_quantised or not shader.name.endswith("_int8"):
            yield f" with {fmt.value} weights", dict.fromkeys(formats, number)


def _quads(nbytes: int) -> int:
    return max(-(-nbytes // 16) * 16, 16)


def _inside(buffer: Buffer, offset: int, n: int) -> Any:
    """Return a buffer's memory; the bytes must lie inside it, which its padding would hide."""
    assert isinstance(buffer, VulkanBuffer), "a buffer of another device"
    if offset < 0 or n < 0 or offset + n > buffer.nbytes:
        raise CloverError(
            what=f"bytes {offset} .. {offset + n} of a Vulkan buffer were to be copied",
            evidence=f"the buffer has {buffer.nbytes} bytes",
            fix="report this as a bug of the caller, with the command that showed it",
            code="CRT-9033",
        )
    return buffer.memory
