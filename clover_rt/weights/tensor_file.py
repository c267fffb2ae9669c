"""A safetensors file mapped read only, and the views into it."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.errors import BadCheckpoint
from clover_rt.spec import Format, Weight
from clover_rt.weights.header import MAX_HEADER_BYTES, Entry, data_bytes, parse_header
from clover_rt.weights.json_file import LFS_MAGIC, lfs_pointer, unreadable

Array = npt.NDArray[Any]
FORMATS: Mapping[str, Format] = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}
LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor of a mapped file; its array is made when it is asked for, and copies nothing."""

    file: TensorFile
    entry: Entry

    @property
    def dtype(self) -> str:
        """The type by its name in the file, such as BF16."""
        return self.entry.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    @property
    def nbytes(self) -> int:
        return self.entry.nbytes

    @property
    def format(self) -> Format | None:
        """How the numbers are stored; None for a type that is not read."""
        return FORMATS.get(self.entry.dtype)

    @property
    def array(self) -> Array:
        """The numbers as a read-only view in the tensor's shape; bf16 as ml_dtypes.bfloat16.

        Raises BadCheckpoint CRT-1153 for a type other than F32, F16 and BF16.
        """
        entry = self.entry
        storage = self.format
        if storage is None:
            raise BadCheckpoint(
                what=f"a tensor of {self.file.path.name} cannot be read",
                evidence=f"{self.file.path}: a tensor of shape {list(entry.shape)} is of type "
                f"{entry.dtype}; types that are read: {', '.join(FORMATS)}",
                fix="use a checkpoint in one of these types",
                code="CRT-1153",
            )
        return self.file.array(entry, storage.codes_dtype)

    @property
    def weight(self) -> Weight:
        """The tensor as a weight over the mapped file; raises as `array` does."""
        array = self.array
        assert self.format is not None
        return Weight(self.format, self.shape, array)


class TensorFile:
    """One safetensors file: entries by name over a read-only map.

    path      the file
    entries   name -> Entry
    metadata  what the file says of itself
    nbytes    size of the file
    """

    def __init__(self, path: Path) -> None:
        """Map a file and check its header.

        Raises BadCheckpoint: those of `parse_header`, and CRT-1105 unreadable, CRT-1140 a Git LFS
        pointer, CRT-1141 truncated, CRT-1142 an impossible header length, CRT-1152 bytes behind
        the last tensor.
        """
        self.path = path
        try:
            with path.open("rb") as stream:
                self.nbytes = os.fstat(stream.fileno()).st_size
                first = stream.read(len(LFS_MAGIC))
                if first.startswith(LFS_MAGIC):
                    raise lfs_pointer(path)
                length = self._header_length(first)
                stream.seek(LENGTH_BYTES)
                header = parse_header(stream.read(length), path)
                self.entries, self.metadata = header.entries, header.metadata
                self._data = LENGTH_BYTES + length
                self._check_size()
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise unreadable(path, error) from error
        self.address: int = np.frombuffer(self._map, np.uint8).ctypes.data

    def array(self, entry: Entry, dtype: np.dtype[Any]) -> Array:
        """Return a read-only view of an entry's bytes as numbers of `dtype`, in its shape."""
        count = entry.nbytes // dtype.itemsize
        if count == 0:
            return np.empty(entry.shape, dtype)
        flat = np.frombuffer(self._map, dtype, count, self._data + entry.start)
        return flat.reshape(entry.shape)

    def release(self, start: int, end: int) -> None:
        """Let go of the memory of bytes start..end of the file; they can be read again.

        Only whole pages inside the range go, so neighbours keep theirs. Does nothing on systems
        that cannot.
        """
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def release_array(self, array: Array) -> None:
        """Let go of the memory under a dense array over this file; see `release`."""
        start = array.ctypes.data - self.address
        self.release(start, start + array.nbytes)

    def _header_length(self, first: bytes) -> int:
        if len(first) < LENGTH_BYTES:
            raise self._truncated(LENGTH_BYTES, "its header")
        (length,) = struct.unpack("<Q", first[:LENGTH_BYTES])
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise BadCheckpoint(
                what=f"{self.path.name} is not a sound safetensors file",
                evidence=f"{self.path}: its first 8 bytes give a header of {length} bytes; "
                f"headers have 2 to {MAX_HEADER_BYTES}",
                fix="check that this is a safetensors file, and download it again",
                code="CRT-1142",
            )
        if LENGTH_BYTES + length > self.nbytes:
            raise self._truncated(LENGTH_BYTES + length, "its header")
        return int(length)

    def _check_size(self) -> None:
        size, last = data_bytes(self.entries)
        want = self._data + size
        if want > self.nbytes:
            have = self.nbytes - self._data
            cut = (e.start + e.nbytes > have for e in self.entries.values())
            lost = sum(cut)
            raise self._truncated(want, f"{lost} of {len(self.entries)} tensors, {last!r} the last")
        if want < self.nbytes:
            raise BadCheckpoint(
                what=f"{self.path.name} is not a sound safetensors file",
                evidence=f"{self.path} has {self.nbytes} bytes but its header describes {want}; "
                f"the last tensor is {last!r}",
                fix="download the file again",
                code="CRT-1152",
            )

    def _truncated(self, want: int, lost: str) -> BadCheckpoint:
        return BadCheckpoint(
            what=f"{self.path.name} is truncated",
            evidence=f"{self.path} has {self.nbytes} bytes of {want} expected; cut: {lost}",
            fix="finish or repeat the download, and check the free space of the disk",
            code="CRT-1141",
        )
