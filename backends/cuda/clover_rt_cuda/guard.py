"""What torch, triton and a driver raise, told as errors that say where and what to do."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import torch
import triton

from clover_rt.errors import CompileError, DeviceLost, OutOfMemory
from clover_rt.spec import Signature

if TYPE_CHECKING:
    from clover_rt_cuda.device import CudaDevice

REMEDIES = (
    "lower --context, which the KV cache grows with; use a checkpoint in fewer bits "
    "(clover-rt quantize); or end other programs on the card"
)
# parts of a compiler's pass that fails name it in a RuntimeError of their own
PASSES = ("PassManager", "LLVM ERROR")
DRIVERS = ("CUDA", "HIP")


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
        if not isinstance(error, Exception) or self.device.is_interpreted:
            return
        if _is_memory(error):
            raise self._no_memory(error) from error
        if _is_compiler(error):
            raise self._no_program(error) from error
        if isinstance(error, RuntimeError) and any(word in str(error) for word in DRIVERS):
            raise self._lost(error) from error
        if self.compiles:
            raise self._no_program(error) from error

    def _no_memory(self, error: Exception) -> OutOfMemory:
        memory = self.device.memory()
        asked = f" for {described(self.sig)}" if self.sig else ""
        return OutOfMemory(
            what=f"{self.device.name} ran out of memory in {self.doing}{asked}",
            evidence=f"free {memory.free} of {memory.total} bytes; {self._about()}: "
            f"{first_line(error)}",
            fix=REMEDIES,
            code="CRT-3231",
        )

    def _no_program(self, error: Exception) -> CompileError:
        asked = described(self.sig) if self.sig else self.doing
        return CompileError(
            what=f"the kernel of {asked} did not compile for {self.device.name}",
            evidence=f"{self._about()}; the compiler said:\n{error}",
            fix="update torch with its triton, or use --backend cpu",
            code="CRT-3521",
        )

    def _lost(self, error: Exception) -> DeviceLost:
        device = self.device
        since = (time.perf_counter() - device.submitted_s) * 1e3
        last = (
            f"{device.submitted}, submitted {since:.0f} ms before" if device.submitted else "none"
        )
        return DeviceLost(
            what=f"{device.name} stopped answering",
            evidence=f"in {self.doing}; last operation {last}; {self._about()}: "
            f"{first_line(error)}",
            fix="look into the system log, reset the card, and start the program anew; --profile "
            f"runs a pass step by step and {device.blocking}=1 waits after each, so that the "
            "failure is charged to the operation that made it; a lower --context or --block-size "
            "makes each of them shorter",
            code="CRT-3310",
        )

    def _about(self) -> str:
        device = self.device
        found = [f"{name}={os.environ[name]}" for name in device.overrides if name in os.environ]
        overrides = ", ".join(found) or "no override set"
        return f"arch {device.arch}, {device.driver}, triton {triton.__version__}, {overrides}"


def no_room(device: CudaDevice, tensor: str, nbytes: int, error: Exception) -> OutOfMemory:
    """Return the error of memory that was asked for a tensor and is not there."""
    memory = device.memory()
    return OutOfMemory(
        what=f"{tensor} needs {nbytes} bytes on {device.name}",
        evidence=f"requested {nbytes} bytes, free {memory.free} of {memory.total} bytes: "
        f"{first_line(error)}",
        fix=REMEDIES,
        code="CRT-3230",
    )


def described(sig: Signature) -> str:
    """Return an operation with its shape, the formats of its weights and its class."""
    axes = ", ".join(f"{name}={n}" for name, n in sig.axes)
    formats = ", ".join(f"{w} {f.value}" for w, f, _ in sig.formats)
    return " ".join(part for part in (sig.op, f"[{axes}]", formats, sig.table.value) if part)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _is_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


def _is_compiler(error: Exception) -> bool:
    return isinstance(error, triton.TritonError) or any(word in str(error) for word in PASSES)
