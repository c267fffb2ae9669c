"""The seam between the engine and what drives Vulkan: a few calls, and the values they exchange.

A driver knows no operation: it has buffers, pipelines and recordings of dispatches. Work runs in
the order in which it is handed over. Where data flows from one dispatch to a later one, the driver
puts what it needs between them; `order.stages` says where that is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""Host memory, contiguous, one axis."""


class Trouble(Enum):
    """What kind of failure a driver reports."""

    MEMORY = "out of memory"
    LOST = "device lost"
    COMPILE = "did not compile"
    OTHER = "failed"


class DriverFailure(Exception):
    """A call of the driver failed: what kind it is, what was being done, the driver's word."""

    def __init__(self, trouble: Trouble, doing: str, cause: str) -> None:
        self.trouble = trouble
        self.doing = doing
        self.cause = cause
        super().__init__(f"{doing}: {cause}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do, in bytes and counts.

    alignment  the offset of a binding is a multiple of it
    binding    most bytes of a binding
    allocation most bytes of a buffer
    bindings   most buffers of a dispatch
    push       bytes of push constants
    shared     bytes of memory that a group shares
    items      most work-items of a group
    groups     most groups along each axis
    subgroup   work-items that run in step
    """

    alignment: int
    binding: int
    allocation: int
    bindings: int
    push: int
    shared: int
    items: int
    groups: tuple[int, int, int]
    subgroup: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a shader takes: how many buffers, and how many bytes of push constants."""

    buffers: int
    push: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Bytes of a buffer that a dispatch sees; `memory` is what `Driver.buffer` returned.

    offset  a multiple of 16
    """

    memory: Any
    offset: int
    nbytes: int
    is_written: bool


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One call of a shader: its pipeline, its groups, its buffers in order, its push constants.

    push  begins with a word for each binding: where the shader starts in what is bound, in words;
          a driver that binds a buffer whole adds the binding's offset to it
    keep  what must live as long as this
    """

    op: str
    pipeline: Any
    groups: tuple[int, int, int]
    bindings: tuple[Binding, ...]
    push: bytes
    keep: tuple[Any, ...] = ()


@dataclass(slots=True)
class Counts:
    """What a driver has done: submissions, passes, and passes that were cut into several."""

    submissions: int = 0
    passes: int = 0
    cut_passes: int = 0


class Driver(ABC):
    """A device, opened.

    Every call may raise DriverFailure. Nothing is waited for but by `download` and `wait`.
    """

    limits: Limits
    features: frozenset[str]
    counts: Counts

    @abstractmethod
    def buffer(self, nbytes: int) -> Any:
        """Return zeroed device memory; it is freed when nothing refers to it any more."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Return (total, free) bytes of the device's memory."""

    @abstractmethod
    def upload(self, memory: Any, offset: int, data: Bytes) -> None: ...

    @abstractmethod
    def download(self, memory: Any, offset: int, data: Bytes) -> None: ...

    @abstractmethod
    def copy(self, dst: Any, dst_offset: int, src: Any, src_offset: int, n: int) -> None: ...

    @abstractmethod
    def pipeline(self, code: bytes, shape: Shape, constants: Mapping[int, int]) -> Any:
        """Return a pipeline; constants by their ids, as the bits of 32-bit words."""

    @abstractmethod
    def record(self, dispatches: Sequence[Dispatch], layers: Sequence[int] = (0,)) -> Any:
        """Return these dispatches, recorded once so that they can be submitted often.

        layers  index of the first dispatch of each layer: where a long pass may be cut
        """

    @abstractmethod
    def submit(self, recording: Any) -> None: ...

    @abstractmethod
    def wait(self) -> None:
        """Wait for everything that was submitted."""

    @abstractmethod
    def times(self, recording: Any) -> list[float]:
        """Return the seconds of each submission of the last finished run; [] if not measured."""

    @abstractmethod
    def close(self) -> None: ...
