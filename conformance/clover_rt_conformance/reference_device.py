"""A device whose kernels are the contracts' own references, in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Buffer, Device, Kernel, Usage
from clover_rt.ops import OPS
from clover_rt.plan.reference import ReferenceKernel


class HostBuffer(Buffer):
    """Bytes of host memory, aligned to 64."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        raw = np.zeros(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.bytes = raw[start : start + nbytes]


class ReferenceDevice(Device):
    """Runs the references of the ops named, all by default; slow."""

    def __init__(self, name: str = "reference", ops: Iterable[str] = tuple(OPS)) -> None:
        self.name = name
        self.kernels: Mapping[str, Kernel] = {op: ReferenceKernel(OPS[op], self) for op in ops}

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        return HostBuffer(nbytes)

    def free(self, buffer: Buffer) -> None:
        """Leave it to the garbage collector."""

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        part = bytes_of(src)[src_offset : src_offset + n].copy()
        bytes_of(dst)[dst_offset : dst_offset + n] = part

    def upload(self, dst: Buffer, offset: int, src: npt.NDArray[np.generic]) -> None:
        raw = np.ascontiguousarray(src).reshape(-1).view(np.uint8)
        bytes_of(dst)[offset : offset + raw.size] = raw

    def download(self, src: Buffer, offset: int, dst: npt.NDArray[np.generic]) -> None:
        raw = dst.reshape(-1).view(np.uint8)
        raw[:] = bytes_of(src)[offset : offset + raw.size]


def bytes_of(buffer: Buffer) -> npt.NDArray[np.uint8]:
    """Return the bytes of a buffer of this device; AssertionError for another device's."""
    assert isinstance(buffer, HostBuffer), f"{buffer!r} is not a buffer of the reference device"
    return buffer.bytes
