"""What a plugin author imports: Backend, Device, Kernel, Step, Buffer, Probe.

A backend is found through the entry-point group `clover_rt.backends`; its module implements the
one hook of `clover_rt.hookspecs`. A device says which operations it runs (`kernels`); everything
else is decomposed or runs on the host, as `clover_rt.plan` decides once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.spec import HostWeight, Numerics, Precision, Signature

Array = npt.NDArray[Any]

API = (1, 0)
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
    PICKS = "picks"
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
    """One device that a probe found. `is_software` devices are used only by name."""

    id: str
    name: str
    kind: str = "cpu"
    memory_bytes: int = 0
    is_software: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)


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
    """An opened device: memory and kernels."""

    name: str
    kernels: Mapping[str, Kernel]
    alignment: int = 64
    max_binding_bytes: int = 0
    views: bool = True

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

    def close(self) -> None:
        """Free everything."""
        return None


class Backend(ABC):
    """A family of devices: the thing that a plugin registers."""

    name: str
    api: tuple[int, int] = API

    @abstractmethod
    def probe(self) -> Probe:
        """Say what is here, cheaply; must not raise."""

    @abstractmethod
    def open(self, info: DeviceInfo) -> Device: ...
