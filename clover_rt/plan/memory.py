"""Buffers: states by place, and edges by liveness out of pools that all programs share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from clover_rt.backend import Buffer, Device, Tensor, Usage
from clover_rt.errors import OutOfMemory
from clover_rt.plan.border import MEMORY, border

# what a user can do about memory, the largest effect first
LESS = (
    "lower --context, which the KV cache grows with; or use --precision fast, which stores it in "
    "half the bytes; or load with fewer slots"
)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def allocate(device: Device, nbytes: int, usage: Usage, what: str) -> Buffer:
    """Return device memory, or raise OutOfMemory with what it was for and every number."""
    limit = device.max_binding_bytes
    if limit and nbytes > limit:
        raise OutOfMemory(
            what=f"{what} needs a buffer of {nbytes} bytes on {device.name}",
            evidence=f"one binding holds at most {limit} bytes there",
            fix=LESS,
            code="CRT-3201",
        )
    try:
        with border(device, MEMORY, f"allocate {nbytes} bytes for {what}"):
            return device.alloc(nbytes, usage)
    except OutOfMemory as error:
        memory = device.memory()
        most = f"; a buffer holds at most {limit} bytes" if limit else ""
        raise OutOfMemory(
            what=f"{what} needs {nbytes} bytes on {device.name}",
            evidence=f"{error.evidence}; free {memory.free} of {memory.total} bytes{most}",
            fix=LESS,
            code="CRT-3202",
        ) from error


@dataclass
class Pool:
    """Edge buffers of one device: taken for a value's life, then free for the next one."""

    device: Device
    free: list[Buffer] = field(default_factory=list)
    taken: list[Buffer] = field(default_factory=list)
    scratch: Buffer | None = None

    def reset(self) -> None:
        """Make every buffer free: passes run one after the other, so programs share them."""
        self.free += self.taken
        self.taken = []

    def take(self, nbytes: int, what: str = "an activation") -> Buffer:
        """Return the smallest free buffer that is large enough, or a new one.

        Sizes are rounded up to an eighth of a power of two, so that values of about the same
        size can follow each other in one buffer.
        """
        size = self._size(nbytes)
        fitting = [b for b in self.free if size <= b.nbytes <= 2 * size]
        if fitting:
            best = min(fitting, key=lambda b: b.nbytes)
            self.free.remove(best)
        else:
            best = allocate(self.device, size, Usage.EDGE, what)
        self.taken.append(best)
        return best

    def give(self, buffer: Buffer) -> None:
        self.taken.remove(buffer)
        self.free.append(buffer)

    def scratch_of(self, nbytes: int, what: str = "a step") -> Tensor | None:
        """Return scratch memory of at least this size, shared by all steps; None for no bytes."""
        if nbytes == 0:
            return None
        if self.scratch is None or self.scratch.nbytes < nbytes:
            size = self._size(nbytes)
            what = f"scratch memory of {what}"
            self.scratch = allocate(self.device, size, Usage.SCRATCH, what)
        return Tensor(self.scratch, np.dtype(np.uint8), (nbytes,))

    def _size(self, nbytes: int) -> int:
        """Return the size class, or the bytes alone where the class is over the device's limit."""
        size = size_class(nbytes, self.device.alignment)
        limit = self.device.max_binding_bytes
        return nbytes if limit and nbytes <= limit < size else size


def size_class(nbytes: int, alignment: int) -> int:
    step = max(alignment, (1 << max(nbytes - 1, 1).bit_length()) // 8)
    return -(-max(nbytes, 1) // step) * step


def tensor(buffer: Buffer, dtype: str, shape: Sequence[int]) -> Tensor:
    return Tensor(buffer, numpy_dtype(dtype), tuple(shape))


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * numpy_dtype(dtype).itemsize
