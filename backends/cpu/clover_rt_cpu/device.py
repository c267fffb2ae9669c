"""The cpu backend and its one device: buffers are numpy bytes, copies are memcpy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.backend import (
    Backend,
    Buffer,
    Device,
    DeviceInfo,
    Kernel,
    Memory,
    Probe,
    Step,
    Usage,
)
from clover_rt.errors import CloverError, OutOfMemory
from clover_rt.spec import Precision
from clover_rt_cpu.jit import jit_kernels
from clover_rt_cpu.jit.isa import choose, supported
from clover_rt_cpu.jit.kernel import Jit
from clover_rt_cpu.jit.prefer import preferred
from clover_rt_cpu.jit.team import captured
from clover_rt_cpu.kernels import make_kernels
from clover_rt_cpu.threads import checked, default_threads
from clover_rt_cpu.workers import Workers

Array = npt.NDArray[Any]
ALIGNMENT = 64


class CpuBuffer(Buffer):
    """Zeroed bytes at a multiple of 64; `tables` holds what kernels parsed out of it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.array: Array = raw[start : start + nbytes]
        self.tables: dict[Any, Any] = {}

    def part(self, offset: int, n: int) -> Array:
        """Return n bytes from `offset` on; CRT-9030 where they do not lie inside the buffer."""
        if offset < 0 or n < 0 or offset + n > self.nbytes:
            raise CloverError(
                what=f"bytes {offset} .. {offset + n} of a cpu buffer were to be copied",
                evidence=f"the buffer has {self.nbytes} bytes",
                fix="report this as a bug of the caller, with the command that showed it",
                code="CRT-9030",
            )
        return self.array[offset : offset + n]


class CpuDevice(Device):
    """The host's processor and memory."""

    name = "cpu"
    alignment = ALIGNMENT

    def __init__(self, workers: int | None = None, isa: str | None = None) -> None:
        """Open the processor with a number of threads and a kind of kernels.

        isa  amx, avx512, avx2 or neon for generated code, or numpy; without it as `choose` says.
             CRT-3016 for one that the processor does not have
        """
        count = workers or default_threads()
        self.workers = Workers(count)
        self.kernels: Mapping[str, Kernel] = make_kernels(self.workers)
        chosen = choose(isa)
        self.jit = None if chosen is None else Jit(chosen, count)
        if self.jit is not None:
            self.kernels = preferred(jit_kernels(self.jit), self.kernels)

    @property
    def threads(self) -> int:
        return self.workers.count

    def use_threads(self, count: int) -> None:
        """Run on so many threads; steps that are bound already run on as many as before.

        Raises BadInput (CRT-1062) for less than one, or more than the processors there are.
        """
        count = checked(count, "threads")
        self.close()
        self.workers.count = count
        if self.jit is not None:
            self.jit.use_threads(count)

    def alloc(self, nbytes: int, usage: Usage) -> CpuBuffer:
        free = self.memory().free
        if free and nbytes > free:
            raise OutOfMemory(
                what=f"{nbytes} bytes of host memory for {usage.value} were asked for",
                evidence=f"{free} bytes are free (MemAvailable of /proc/meminfo)",
                fix="ask for a shorter context or fewer slots, or end other programs",
                code="CRT-3221",
            )
        try:
            return CpuBuffer(nbytes)
        except MemoryError as error:
            raise OutOfMemory(
                what=f"{nbytes} bytes of host memory for {usage.value} were asked for",
                evidence=f"the system refused them; {free} bytes were reported free",
                fix="ask for a shorter context or fewer slots, or raise the memory limit",
                code="CRT-3220",
            ) from error

    def free(self, buffer: Buffer) -> None:
        buffer = _own(buffer)
        buffer.array = np.zeros(0, np.uint8)
        buffer.nbytes = 0
        buffer.tables.clear()

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        _own(dst).part(dst_offset, n)[:] = _own(src).part(src_offset, n)

    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        _own(dst).part(offset, src.nbytes)[:] = _bytes(src)

    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        _bytes(dst)[:] = _own(src).part(offset, dst.nbytes)

    def memory(self) -> Memory:
        return host_memory()

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        """Rows are float32 always; `fast` halves the KV cache."""
        return ("float32", "bfloat16" if precision is Precision.FAST else "float32")

    def capture(self, steps: Sequence[Step]) -> Step:
        """Return one step; generated kernels in a row are one native call of each thread."""
        if self.jit is None:
            return super().capture(steps)
        return captured(self.jit.team, steps)

    def close(self) -> None:
        self.workers.close()
        if self.jit is not None:
            self.jit.team.close()


class CpuBackend(Backend):
    """The backend that is always there."""

    name = "cpu"
    api = (1, 0)

    def probe(self) -> Probe:
        notes = {
            "processors": str(os.cpu_count() or 1),
            "numpy": np.__version__,
            "instructions": ", ".join(supported()) or "numpy alone",
        }
        info = DeviceInfo(
            id="cpu",
            name=processor_name(),
            kind="cpu",
            memory_bytes=host_memory().total,
            notes=notes,
        )
        return Probe(devices=(info,))

    def open(self, info: DeviceInfo) -> CpuDevice:
        return CpuDevice()


def host_memory() -> Memory:
    """Return the host's memory in bytes, from /proc/meminfo; zeros where there is none."""
    found = {}
    for line in _lines("/proc/meminfo"):
        key, _, value = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            found[key] = int(value.split()[0]) * 1024
    return Memory(found.get("MemTotal", 0), found.get("MemAvailable", 0))


def processor_name() -> str:
    """Return the model name of the first processor, or `cpu` where the system does not tell."""
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return "cpu"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _own(buffer: Buffer) -> CpuBuffer:
    assert isinstance(buffer, CpuBuffer), "a buffer of another device was passed to cpu"
    return buffer


def _bytes(array: Array) -> Array:
    assert array.flags.c_contiguous, "host arrays are copied whole: they must be contiguous"
    return array.reshape(-1).view(np.uint8)
