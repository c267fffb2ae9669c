"""A small host device for tests of the plan: opaque buffers, any set of kernels."""

from __future__ import annotations

import numpy as np

from clover_rt.backend import Buffer, Device, Usage
from clover_rt.ops import OPS
from clover_rt.plan.reference import ReferenceKernel


class ToyBuffer(Buffer):
    """Memory that only its device can read."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._bytes = np.zeros(nbytes, np.uint8)


class ToyDevice(Device):
    """A device whose kernels are the references of the ops named.

    transfers counts uploads and downloads.
    """

    def __init__(self, name: str, ops=()) -> None:
        self.name = name
        self.kernels = {op: ReferenceKernel(OPS[op], self) for op in ops}
        self.transfers = 0
        self.captured = 0

    def alloc(self, nbytes: int, usage: Usage) -> ToyBuffer:
        return ToyBuffer(nbytes)

    def free(self, buffer: Buffer) -> None:
        pass

    def copy(self, dst, dst_offset, src, src_offset, n) -> None:
        dst._bytes[dst_offset : dst_offset + n] = src._bytes[src_offset : src_offset + n].copy()

    def upload(self, dst, offset, src) -> None:
        self.transfers += 1
        raw = np.ascontiguousarray(src).reshape(-1).view(np.uint8)
        assert offset + raw.size <= dst.nbytes
        dst._bytes[offset : offset + raw.size] = raw

    def download(self, src, offset, dst) -> None:
        self.transfers += 1
        raw = dst.reshape(-1).view(np.uint8)
        raw[:] = src._bytes[offset : offset + raw.size]

    def capture(self, steps):
        self.captured += 1
        return super().capture(steps)
