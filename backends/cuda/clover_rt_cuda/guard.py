"""What torch, triton and a driver raise, told as errors that say where and what to do."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton

from clover_rt.backend import Memory
from clover_rt.errors import (
    BackendUnavailable,
    CloverError,
    CompileError,
    DeviceLost,
    OutOfMemory,
)
from clover_rt.spec import Signature
from clover_rt_cuda.cache import is_ours

if TYPE_CHECKING:
    from clover_rt_cuda.device import CudaDevice

# what can be done about memory, the largest effect first: for weights, and for all else
FOR_WEIGHTS = (
    "use a checkpoint in fewer bits (clover-rt quantize --format q4); end other programs on the "
    "card; or lower --context, whose KV cache takes room from the weights"
)
FOR_CACHES = (
    "lower --context, which the KV cache grows with; use a checkpoint in fewer bits (clover-rt "
    "quantize --format q4); or end other programs on the card"
)
# what torch says of the host's memory
HOST_MEMORY = ("can't allocate memory", "not enough memory")
# parts of a compiler's pass that fails name it in a RuntimeError of their own
PASSES = ("PassManager", "LLVM ERROR")
DRIVERS = ("CUDA", "HIP")
# a driver that has no code for a card, or code that is not for it
NO_CODE = (
    *("no kernel image", "invalid device function", "kernel image is invalid"),
    *("hipErrorNoBinaryForGpu", "hipErrorInvalidImage", "cudaErrorNoKernelImageForDevice"),
)


class Guard:
    """A context in which errors are told as ours.

    doing     what is done, such as "launch" or "download"
    sig       the operation that it is done for, where there is one
    compiles  all that is done is to compile, so that what is not the driver's is the compiler's
    An interpreter's errors pass: they are of the kernels, not of a card.
    """

    def __init__(
        self, device: CudaDevice, doing: str, sig: Signature | None = None, compiles: bool = False
    ) -> None:
        self.device, self.doing, self.sig, self.compiles = device, doing, sig, compiles

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, CloverError):
            return
        if self.device.is_interpreted:
            return
        if is_memory(error):
            raise self._no_memory(error) from error
        if _is_compiler(error):
            raise self._no_program(error) from error
        if _is_host_compiler(error):
            raise self._no_launcher(error) from error
        if isinstance(error, RuntimeError) and any(word in str(error) for word in DRIVERS):
            is_foreign = any(word in str(error) for word in NO_CODE)
            raise (self._no_code(error) if is_foreign else self._lost(error)) from error
        if self.compiles:
            raise self._no_program(error) from error

    def _no_memory(self, error: Exception) -> OutOfMemory:
        memory = _memory_of(self.device)
        asked = f" for {self.sig.described()}" if self.sig else ""
        return OutOfMemory(
            what=f"{self.device.name} ran out of memory in {self.doing}{asked}",
            evidence=f"free {memory.free} of {memory.total} bytes; {self._about()}: "
            f"{first_line(error)}",
            fix=FOR_CACHES,
            code="CRT-3231",
        )

    def _no_program(self, error: Exception) -> CompileError:
        asked = self.sig.described() if self.sig else self.doing
        return CompileError(
            what=f"the kernel of {asked} did not compile for {self.device.name}",
            evidence=f"{self._about()}; the compiler said:\n{error}",
            fix=f"update torch with its triton; or {self.device.elsewhere}",
            code="CRT-3521",
        )

    def _no_launcher(self, error: Exception) -> CompileError:
        return CompileError(
            what=f"triton could not build its launcher for {self.device.name}",
            evidence=f"{self._about()}: {error}",
            fix="install a C compiler and Python's headers (Debian: gcc, python3-dev), or name a "
            f"compiler in CC; or {self.device.elsewhere}",
            code="CRT-3523",
        )

    def _no_code(self, error: Exception) -> BackendUnavailable:
        return BackendUnavailable(
            what=f"torch or triton has no code for {self.device.name}",
            evidence=f"in {self.doing}; {self._about()}: {first_line(error)}",
            fix="install a torch whose torch.cuda.get_arch_list() has the card's architecture, and "
            f"unset overrides; or {self.device.elsewhere}",
            code="CRT-3524",
        )

    def _lost(self, error: Exception) -> DeviceLost:
        device = self.device
        since = (time.perf_counter() - device.submitted_s) * 1e3
        sigs = device.submitted
        last = f"{_between(sigs)}, submitted {since:.0f} ms before" if sigs else "none"
        asked = f" of {self.sig.described()}" if self.sig else ""
        return DeviceLost(
            what=f"{device.name} stopped answering",
            evidence=f"in {self.doing}{asked}; last operation {last}; {self._about()}: "
            f"{first_line(error)}",
            fix="look into the system log, reset the card, and start the program anew; --profile "
            f"runs a pass step by step and {device.blocking}=1 waits after each, so that the "
            "failure is charged to the operation that made it; a lower --context or --block-size "
            "makes each of them shorter",
            code="CRT-3310",
        )

    def _about(self) -> str:
        device = self.device
        given = [(name, os.environ.get(name)) for name in device.overrides]
        found = [f"{name}={value}" for name, value in given if value and not is_ours(name, value)]
        overrides = ", ".join(found) or "no override set"
        return f"arch {device.arch}, {device.driver}, triton {triton.__version__}, {overrides}"


def no_room(
    device: CudaDevice, tensor: str, nbytes: int, remedies: str, error: Exception
) -> OutOfMemory:
    """Return the error of memory that was asked for a tensor and is not there."""
    memory = _memory_of(device)
    return OutOfMemory(
        what=f"{tensor} needs {nbytes} bytes on {device.name}",
        evidence=f"requested {nbytes} bytes, free {memory.free} of {memory.total} bytes: "
        f"{first_line(error)}",
        fix=remedies,
        code="CRT-3230",
    )


def _between(sigs: Sequence[Signature]) -> str:
    """Return the operation that was submitted, or how many launches were, with first and last."""
    first, last = sigs[0].described(), sigs[-1].described()
    return first if len(sigs) == 1 else f"one of {len(sigs)} launches from {first} to {last}"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def is_memory(error: Exception) -> bool:
    """Is it that memory is short, on the card or on the host?"""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return "out of memory" in text or any(words in text for words in HOST_MEMORY)


def _memory_of(device: CudaDevice) -> Memory:
    """Return a card's memory; 0 for one that is not open yet, or does not answer."""
    try:
        return Memory() if device.is_interpreted else device.card.memory()
    except (AttributeError, RuntimeError):
        return Memory()


def _is_compiler(error: Exception) -> bool:
    return isinstance(error, triton.TritonError) or any(word in str(error) for word in PASSES)


def _is_host_compiler(error: Exception) -> bool:
    """Is it of the host's C compiler, which builds what launches kernels?"""
    if isinstance(error, subprocess.CalledProcessError):
        return "-fPIC" in error.cmd
    return "C compiler" in str(error)
