"""A card, or the interpreter: memory as torch bytes, launches counted, errors told as ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from clover_rt.backend import Buffer, Device, DeviceInfo, Kernel, Memory, Usage
from clover_rt.errors import CompileError, DeviceLost, OutOfMemory
from clover_rt.spec import Precision, Signature
from clover_rt_cuda.kernels import make_kernels

Array = npt.NDArray[Any]
OVERRIDES = ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "TRITON_INTERPRET")
REMEDIES = (
    "lower --context, which the KV cache grows with; use a checkpoint in fewer bits "
    "(clover-rt quantize); or end other programs on the card"
)


class TorchBuffer(Buffer):
    """Bytes of a torch device; `data` is uint8 [nbytes]."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data
        self.nbytes = data.numel()


class CudaDevice(Device):
    """One card, with the edges of a pass in float32 and the KV cache in the precision's type.

    launches  kernels launched since it was opened
    """

    alignment = 256

    def __init__(self, info: DeviceInfo) -> None:
        self.name = info.name
        self.is_interpreted = info.is_software
        self.arch = "interpreter" if self.is_interpreted else info.notes["arch"]
        self.torch = torch.device("cpu" if self.is_interpreted else info.id)
        self.launches = 0
        self.kernels: Mapping[str, Kernel] = make_kernels(self)

    def alloc(self, nbytes: int, usage: Usage) -> TorchBuffer:
        return TorchBuffer(self.zeros(nbytes, torch.uint8, f"{usage.value} buffer"))

    def zeros(self, count: int, dtype: torch.dtype, tensor: str) -> torch.Tensor:
        """Return new zeroed memory; OutOfMemory (CRT-3230) names the tensor and both numbers."""
        try:
            return torch.zeros(count, dtype=dtype, device=self.torch)
        # RuntimeError: what torch raises for host memory, and the base of its error for a card's
        except RuntimeError as error:
            nbytes = count * dtype.itemsize
            free = self.memory().free
            raise OutOfMemory(
                what=f"{tensor} needs {nbytes} bytes on {self.name}",
                evidence=f"requested {nbytes} bytes, free {free} bytes: {_first_line(error)}",
                fix=REMEDIES,
                code="CRT-3230",
            ) from error

    def free(self, buffer: Buffer) -> None:
        own = _own(buffer)
        own.data = torch.zeros(0, dtype=torch.uint8)
        own.nbytes = 0

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        part = _own(src).data[src_offset : src_offset + n]
        _own(dst).data[dst_offset : dst_offset + n].copy_(part)

    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        self.fill(_own(dst).data[offset : offset + src.nbytes], src)

    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        part = _own(src).data[offset : offset + dst.nbytes]
        with self.guarded("download", ""):
            dst.reshape(-1).view(np.uint8)[:] = part.cpu().numpy()

    def fill(self, target: torch.Tensor, source: Array) -> None:
        """Copy a host array into bytes of the device."""
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        if not data.flags.writeable:
            # torch takes no memory that it could not write, and files are mapped read-only
            data = data.copy()
        with self.guarded("upload", ""):
            target.copy_(torch.from_numpy(data))

    def synchronize(self) -> None:
        if not self.is_interpreted:
            with self.guarded("synchronize", ""):
                torch.cuda.synchronize(self.torch)

    def memory(self) -> Memory:
        if self.is_interpreted:
            return Memory()
        free, total = torch.cuda.mem_get_info(self.torch)
        return Memory(total, free)

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        """Rows are float32 always; `fast` multiplies in bfloat16 and halves the KV cache."""
        return ("float32", "bfloat16" if precision is Precision.FAST else "float32")

    def launch(
        self, sig: Signature, kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any
    ) -> None:
        """Launch a kernel of an op; a failure names op, shape and arch."""
        self.launches += 1
        with self.guarded(sig.op, _shape(sig)):
            if not self.is_interpreted:
                torch.cuda.set_device(self.torch)
            kernel[grid](*args, **meta)

    def guarded(self, op: str, shape: str) -> _Guard:
        return _Guard(self, op, shape)


class _Guard:
    """Tells what triton and the driver raise as errors of ours."""

    def __init__(self, device: CudaDevice, op: str, shape: str) -> None:
        self.device, self.op, self.shape = device, op, shape

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        device = self.device
        if error is None or device.is_interpreted:
            return
        asked = " ".join((self.op, self.shape)).strip()
        about = f"arch {device.arch}, triton {triton.__version__}, {_overrides()}"
        if isinstance(error, (triton.CompilationError, triton.runtime.errors.OutOfResources)):
            raise CompileError(
                what=f"the kernel of {asked} did not compile for {device.name}",
                evidence=f"{about}; the compiler said:\n{error}",
                fix="update torch with its triton, or use --backend cpu",
                code="CRT-3521",
            ) from error
        if isinstance(error, RuntimeError) and "CUDA" in str(error):
            raise DeviceLost(
                what=f"{device.name} stopped answering",
                evidence=f"last operation {asked}; {about}: {_first_line(error)}",
                fix="look into the system log, reset the card, and start the program anew; "
                "CUDA_LAUNCH_BLOCKING=1 charges the failure to the operation that made it",
                code="CRT-3310",
            ) from error


def _shape(sig: Signature) -> str:
    axes = ", ".join(f"{name}={n}" for name, n in sig.axes)
    formats = ", ".join(f"{w} {f.value}" for w, f, _ in sig.formats)
    return f"[{axes}] {formats} {sig.table.value}".strip()


def _overrides() -> str:
    found = [f"{name}={os.environ[name]}" for name in OVERRIDES if name in os.environ]
    return ", ".join(found) or "no override set"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _own(buffer: Buffer) -> TorchBuffer:
    assert isinstance(buffer, TorchBuffer), "a buffer of another device was passed to cuda"
    return buffer
