"""What a plugin author imports: Backend, Device, Kernel, Step, Buffer, Probe, and two helpers.

A backend is found through the entry-point group `clover_rt.backends`; its module implements the
one hook of `clover_rt.hookspecs`. A device says which operations it runs (`kernels`); everything
else is decomposed or runs on the host, as `clover_rt.plan` decides once. `HostDevice` is a device
whose memory is the host's, and `host_kernel` makes a kernel of a numpy function. How to write a
backend: docs/plugins.md.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.errors import BadInput, OutOfMemory
from clover_rt.spec import (
    HostWeight,
    Numerics,
    Operand,
    OpSpec,
    Picks,
    Precision,
    Role,
    Signature,
    StepParams,
    Weight,
    evaluate_dim,
)

__all__ = [
    "API",
    "Backend",
    "Buffer",
    "Device",
    "DeviceInfo",
    "HostBuffer",
    "HostDevice",
    "Kernel",
    "Memory",
    "Prepared",
    "Probe",
    "Step",
    "Tensor",
    "Usage",
    "host_kernel",
]

Array = npt.NDArray[Any]

API = (1, 3)
"""Version of this module's surface: (major, minor)."""

Step = Callable[[], None]
"""One bound call: it takes nothing, returns nothing, and is all that a pass runs."""

Prepared = Any
"""What `Kernel.prepare` returned: opaque to the plan."""


class Usage(Enum):
    """What a buffer is for; a device may place each kind differently."""

    EDGE = "edge"
    STATE = "state"
    PARAMS = "params"
    SCRATCH = "scratch"


class Buffer(ABC):
    """Device memory; opaque but for its size."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand as a kernel is bound to it: dense, row-major, at a capacity.

    buffer  device memory; the operand starts at byte `offset` of it
    """

    buffer: Buffer
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that a probe found.

    kind          "cpu", "gpu", "discrete" or "integrated"
    is_software   a device that is not hardware; it is used only by name
    notes         facts for people; "engine" and "chosen" (why this device) are shown by `run`, and
                  all but "chosen" tell a device and its driver from others
    only_by_name  why the device is not chosen by itself, as part of a sentence; "" if it may be
    """

    id: str
    name: str
    kind: str = "cpu"
    memory_bytes: int = 0
    is_software: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    only_by_name: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a backend found on this machine: devices, or the problem and its fix."""

    devices: tuple[DeviceInfo, ...] = ()
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a device in bytes; 0 where it is not known."""

    total: int = 0
    free: int = 0


class Kernel(ABC):
    """One operation on one device."""

    def numerics(self, sig: Signature) -> Numerics:
        """Return what it computes with here; the op's SPEC holds the tolerance of each."""
        return Numerics.F32

    def row_invariant(self, sig: Signature) -> bool:
        """Do a row's bits depend neither on the other rows nor on how many there are?"""
        return False

    def supports(self, sig: Signature) -> str:
        """Return "" if every length from 0 to the capacities works, else a sentence why not.

        The sentence names both numbers: what was asked and what the limit is.
        """
        return ""

    def scratch(self, sig: Signature) -> int:
        """Return the bytes of scratch memory that a call needs."""
        return 0

    def prepared_bytes(self, sig: Signature) -> int:
        """Return the bytes that `prepare` will allocate (0 where it only maps the file)."""
        return 0

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        """Repack the weights once a node; one result serves every class and capacity.

        sig comes without dynamic axes (`Signature.static`).
        """
        return weights

    @abstractmethod
    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        """Return a step that runs the operation on these operands.

        operands holds each given operand but the weights, at capacity. Rows past the table are
        neither read nor written. With an empty table no state changes.
        """


class Device(ABC):
    """An opened device: memory and kernels.

    name               for people, such as "cpu" or the card's name
    kernels            one kernel an op, by the op's name
    alignment          bytes that the offset of an operand is a multiple of
    max_binding_bytes  the largest buffer; 0 for no limit
    views              may an operand start inside a buffer?
    origin             the plugin that it came from; the core sets it, for messages
    info               what the probe said of it; the core sets it
    on_progress        told (done, total, what) of long work outside a pass, such as
                       "compiling NAME"; the core sets it
    """

    name: str
    kernels: Mapping[str, Kernel]
    alignment: int = 64
    max_binding_bytes: int = 0
    views: bool = True
    origin: str = ""
    info: DeviceInfo | None = None
    on_progress: Callable[[int, int, str], None] | None = None

    @abstractmethod
    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        """Return new zeroed memory, or raise OutOfMemory with both numbers."""

    @abstractmethod
    def free(self, buffer: Buffer) -> None: ...

    @abstractmethod
    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        """Copy n bytes inside the device."""

    @abstractmethod
    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        """Copy a contiguous host array to byte `offset` of a buffer."""

    @abstractmethod
    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        """Copy from byte `offset` of a buffer into a contiguous host array; waits for it."""

    def synchronize(self) -> None:
        """Wait for everything submitted; errors of earlier steps surface here."""
        return None

    def memory(self) -> Memory:
        return Memory()

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        """Return the numpy names of (edge, KV) element types in this precision."""
        return ("float32", "float32")

    def capture(self, steps: Sequence[Step]) -> Step:
        """Return one step that runs these in order: a recorded submission where there is one."""
        run = tuple(steps)

        def captured() -> None:
            for step in run:
                step()

        return captured

    def capture_layers(self, layers: Sequence[Sequence[Step]]) -> Step:
        """Return `capture` of the steps of all layers, in order.

        A device that divides long submissions does so between layers.
        """
        return self.capture([step for layer in layers for step in layer])

    def tally(self) -> Mapping[str, int]:
        """Return what it has counted since it was opened, by name, for people."""
        return {}

    def trials(self) -> Mapping[str, Callable[[], None]]:
        """Return what `doctor` tries one by one, by name, such as to compile each kernel.

        Each raises where it fails, and runs in a child process, since it may hang or crash.
        """
        return {}

    def close(self) -> None:
        """Free everything."""
        return None


class Backend(ABC):
    """A family of devices: the thing that a plugin registers.

    name  what --backend takes
    api   (major, minor) of the plugin API that it was written for, as numbers
    """

    name: str
    api: tuple[int, int]

    @abstractmethod
    def probe(self) -> Probe:
        """Say what is here, cheaply; must not raise."""

    @abstractmethod
    def open(self, info: DeviceInfo) -> Device: ...


class HostBuffer(Buffer):
    """Host memory: `array` is uint8 [nbytes], zeroed, its address a multiple of the alignment."""

    def __init__(self, nbytes: int, alignment: int = 64) -> None:
        raw = np.zeros(nbytes + alignment, np.uint8)
        start = -raw.ctypes.data % alignment
        self.nbytes = nbytes
        self.array: Array = raw[start : start + nbytes]


class HostDevice(Device):
    """A device whose memory is the host's: its author writes a name and kernels, no more."""

    def alloc(self, nbytes: int, usage: Usage) -> HostBuffer:
        try:
            return HostBuffer(nbytes, self.alignment)
        except MemoryError as error:
            raise OutOfMemory.of(self.name, nbytes, self.memory().free) from error

    def free(self, buffer: Buffer) -> None:
        """Drop the memory; views that a kernel still holds keep it alive."""
        self._bytes(buffer, 0, 0)
        buffer.nbytes = 0
        buffer.array = np.zeros(0, np.uint8)  # type: ignore[attr-defined]

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        self._bytes(dst, dst_offset, n)[:] = self._bytes(src, src_offset, n).copy()

    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        self._bytes(dst, offset, src.nbytes)[:] = src.reshape(-1).view(np.uint8)

    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        dst.reshape(-1).view(np.uint8)[:] = self._bytes(src, offset, dst.nbytes)

    def array(self, tensor: Tensor) -> Array:
        """Return an operand as an array over the device's memory; nothing is copied."""
        flat = self._bytes(tensor.buffer, tensor.offset, tensor.nbytes)
        return flat.view(tensor.dtype).reshape(tensor.shape)

    def _bytes(self, buffer: Buffer, offset: int, n: int) -> Array:
        assert isinstance(buffer, HostBuffer), f"a buffer of another device on {self.name}"
        assert offset >= 0 and offset + n <= buffer.nbytes, f"{offset} + {n} of {buffer.nbytes}"
        return buffer.array[offset : offset + n]


def host_kernel(
    spec: OpSpec,
    function: Callable[..., Any],
    device: Device,
    *,
    supports: Callable[[Signature], str] | None = None,
    prepare: Callable[[Weight], Any] | None = None,
    numerics: Numerics = Numerics.F32,
    row_invariant: bool = False,
) -> Kernel:
    """Return a kernel of `spec` that runs a numpy function on the host.

    function  is called with those operands and attributes that its parameters name: operands as
              arrays of the pass's live rows, states whole, weights as `Weight`, params as
              `StepParams`, an absent optional operand as its default or None. Only what it names
              is moved. It returns the output, or a dict by name where there are several, or names
              outputs as parameters and writes them in place; states it updates in place. It is
              not called where there is nothing to write, such as for a pass without rows.
    prepare   is called with each weight once a node; the function gets its result instead
    supports, numerics, row_invariant  are answered as in `Kernel`
    Works on any device, by download and upload; on a HostDevice nothing is copied.
    Raises BadInput: CRT-3410 a parameter that is no operand or attribute; in a pass CRT-3411 no
    result for an output, CRT-3412 a result of another shape, CRT-3413 a result that is no output.
    """
    return _HostKernel(spec, function, device, supports, prepare, numerics, row_invariant)


class _HostKernel(Kernel):
    def __init__(
        self,
        spec: OpSpec,
        function: Callable[..., Any],
        device: Device,
        supports: Callable[[Signature], str] | None,
        prepare: Callable[[Weight], Any] | None,
        numerics: Numerics,
        row_invariant: bool,
    ) -> None:
        self.spec = spec
        self.function = function
        self.device = device
        self._supports = supports
        self._prepare = prepare
        self._numerics = numerics
        self._row_invariant = row_invariant
        self._defaults: dict[str, Any] = {}
        for p in inspect.signature(function).parameters.values():
            self._defaults[p.name] = None if p.default is inspect.Parameter.empty else p.default
        known = [*(o.name for o in spec.operands), *spec.attrs]
        strange = [name for name in self._defaults if name not in known]
        if strange:
            raise self._wrong(
                f"takes {', '.join(strange)}",
                f"operands and attributes of {spec.name}: {', '.join(known)}",
                "name its parameters after these; it takes those that it needs",
                "CRT-3410",
            )

    def numerics(self, sig: Signature) -> Numerics:
        return self._numerics

    def row_invariant(self, sig: Signature) -> bool:
        return self._row_invariant

    def supports(self, sig: Signature) -> str:
        return "" if self._supports is None else self._supports(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        whole = {name: w.whole() for name, w in weights.items() if name in self._defaults}
        if self._prepare is None:
            return whole
        return {name: self._prepare(w) for name, w in whole.items()}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        device, axes = self.device, dict(sig.axes)
        mapped = isinstance(device, HostDevice)
        host: dict[str, Array] = {}
        for name, t in operands.items():
            host[name] = device.array(t) if mapped else np.empty(t.shape, t.dtype)  # type: ignore[attr-defined]
        params = StepParams(sig.layout, host["params"].reshape(-1))
        given = {name: value for name, value in sig.attrs if name in self._defaults}
        arguments = self._defaults | given | prepared | {"params": params}
        if "params" not in self._defaults:
            del arguments["params"]
        named = [o for o in self.spec.operands if o.name in operands and o.name in self._defaults]
        named = [o for o in named if o.role is not Role.PARAMS]
        outputs = [o for o in self.spec.outputs if o.name in operands]
        changed = [o for o in named if o.is_written and o.role is not Role.OUTPUT] + outputs
        first = {o.name: o.shape[0] for o in [*named, *outputs] if o.role is not Role.STATE}

        def step() -> None:
            if not mapped:
                device.download(operands["params"].buffer, operands["params"].offset, params.buffer)
            _, rows, segments, wanted, *_ = params.header.tolist()
            lengths = axes | {"T": rows, "W": wanted, "segments": segments}
            live = {name: host[name][: evaluate_dim(dim, lengths)] for name, dim in first.items()}
            live = host | live
            # an empty table changes no state, but offsets and the header of picks are written
            due = changed if params.header[1:].any() else outputs
            if not any(live[o.name].size for o in due):
                return
            for o in named:
                if not mapped:
                    device.download(operands[o.name].buffer, operands[o.name].offset, live[o.name])
                arguments[o.name] = live[o.name]
            with np.errstate(all="ignore"):
                result = self.function(**arguments)
            for name, array in self._results(result, outputs, live):
                live[name][...] = array
            for o in changed:
                if not mapped:
                    device.upload(operands[o.name].buffer, operands[o.name].offset, live[o.name])

        return step

    def _results(
        self, result: Any, outputs: Sequence[Operand], live: Mapping[str, Array]
    ) -> list[tuple[str, Array]]:
        """Return (output, array of its live rows) of all that the function returned."""
        missing = [o.name for o in outputs if o.name not in self._defaults]
        if result is None:
            found: dict[str, Any] = {}
        elif isinstance(result, Mapping):
            found = dict(result)
        else:
            found = {o.name: result for o in outputs[:1]}
        absent = [name for name in missing if name not in found]
        if absent:
            raise self._wrong(
                f"gave no {', '.join(absent)}",
                f"it returned {type(result).__name__}",
                f"return {absent[0]}, or take it as a parameter and write it in place",
                "CRT-3411",
            )
        known = [o.name for o in outputs]
        strange = [name for name in found if name not in known]
        if strange:
            raise self._wrong(
                f"gave {', '.join(strange)}",
                f"outputs of {self.spec.name}: {', '.join(known)}",
                "return outputs by name; states are updated in place",
                "CRT-3413",
            )
        out = []
        for name, value in found.items():
            if isinstance(value, Picks):
                words = np.zeros_like(live[name])
                value.encode(words)
                value = words
            if np.shape(value) != live[name].shape:
                raise self._wrong(
                    f"gave {name} of shape {list(np.shape(value))}",
                    f"the live rows have shape {list(live[name].shape)}",
                    "return one row for each live row",
                    "CRT-3412",
                )
            out.append((name, value))
        return out

    def _wrong(self, what: str, evidence: str, fix: str, code: str) -> BadInput:
        name = getattr(self.function, "__name__", repr(self.function))
        return BadInput(f"host kernel {name} of {self.spec.name} {what}", evidence, fix, code)
