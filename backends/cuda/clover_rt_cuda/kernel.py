"""What the kernels share on the host's side: views of operands, words of the table, weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
import triton.language as tl

from clover_rt.backend import Kernel, Tensor
from clover_rt.ops import OPS
from clover_rt.spec import Format, HostWeight, Numerics, Precision, Signature, StepLayout
from clover_rt_cuda.launch import Launch, sequence

if TYPE_CHECKING:
    from clover_rt_cuda.device import CudaDevice

__all__ = [
    "CODES",
    "TORCH",
    "DeviceWeight",
    "TritonKernel",
    "Words",
    "block",
    "cdiv",
    "dot_type",
    "numerics_of",
    "room",
    "room_bytes",
    "sequence",
    "table_of",
    "view",
    "views",
]

PIECE = 64 << 20
"""Bytes of a weight that are on their way to the device at a time."""

TORCH = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    # bits are bits: the kernels shift and mask them
    "uint32": torch.int32,
    "uint8": torch.uint8,
}
CODES = {
    Format.F32: torch.float32,
    Format.F16: torch.float16,
    Format.BF16: torch.bfloat16,
    Format.Q8: torch.int8,
    Format.Q4: torch.uint8,
}


@dataclass(frozen=True, slots=True)
class Words:
    """Where the sections of StepParams start, in 32-bit words."""

    segments: int
    controls: int
    wanted: int
    page_deltas: int
    count_deltas: int
    advances: int
    tokens: int
    row_segment: int

    @staticmethod
    def of(layout: StepLayout) -> Words:
        starts = {name: offset // 4 for name, (offset, _, _) in layout.sections.items()}
        del starts["header"]
        return Words(**starts)


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A weight on the device as it is stored: codes, and a scale and a zero point a group."""

    format: str
    group: int
    codes: torch.Tensor
    scale: torch.Tensor | None = None
    zero: torch.Tensor | None = None

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        return self.codes, self.scale, self.zero

    @property
    def constants(self) -> dict[str, Any]:
        """Return what a kernel compiles in."""
        return {"FORMAT": self.format, "GROUP": self.group}


class TritonKernel(Kernel):
    """A kernel whose edges are float32; `inputs` names operand -> types that it takes too."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device

    def supports(self, sig: Signature) -> str:
        for name, dtype in sig.dtypes:
            if dtype not in TORCH:
                return f"operand {name} is {dtype}; cuda computes with {', '.join(TORCH)}"
        return ""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> dict[str, DeviceWeight]:
        return {name: self.upload(weight) for name, weight in weights.items()}

    def prepared_bytes(self, sig: Signature) -> int:
        spec, axes = OPS[sig.op], dict(sig.axes)
        return sum(
            _bytes_of(fmt, group, math.prod(spec.shape(name, axes)))
            for name, fmt, group in sig.formats
        )

    def upload(self, weight: HostWeight) -> DeviceWeight:
        """Copy a weight to the device piece by piece, as it is stored."""
        shape, group = weight.shape, weight.group
        rows, each = shape[0], int(np.prod(shape[1:], dtype=np.int64))
        halved = 2 if weight.format is Format.Q4 else 1
        codes = self.device.zeros(rows * each // halved, CODES[weight.format], weight.name)
        scale = zero = None
        if weight.format.is_quantised:
            scale = self.device.zeros(rows * each // group, torch.float16, weight.name)
        if weight.has_zero:
            zero = self.device.zeros(rows * each // group, torch.uint8, weight.name)
        step = max(1, PIECE * halved // max(1, each * codes.element_size()))
        for row, part in weight.slices(step):
            n = part.shape[0]
            arrays = ((codes, part.codes), (scale, part.scale), (zero, part.zero))
            for target, source in arrays:
                if target is not None and source is not None:
                    width = target.numel() // rows
                    place = target[row * width : (row + n) * width].view(torch.uint8)
                    self.device.fill(place, source)
        return DeviceWeight(weight.format.value, group, codes, scale, zero)

    def vector(self, weight: HostWeight, offset: float = 0.0) -> torch.Tensor:
        """Return a small weight's numbers on the device in float32, plus an offset."""
        values = weight.whole().values(np.float32) + np.float32(offset)
        target = self.device.zeros(values.size, torch.float32, weight.name)
        self.device.fill(target.view(torch.uint8), values)
        return target

    def launcher(
        self, sig: Signature, kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any
    ) -> Launch:
        """Return a step that launches a kernel; what starts with upper case is compiled in."""
        return Launch(self.device, sig, kernel, grid, args, meta)

    def tile(self, kind: str, sig: Signature, own: Mapping[str, int]) -> dict[str, int]:
        """Return a tile, which is `own` where nothing was measured on this kind of card."""
        return self.device.tuning.tile(kind, sig, own)


def _bytes_of(fmt: Format, group: int, count: int) -> int:
    """Return the bytes of `count` numbers of a weight, with a zero point where there may be one."""
    if not fmt.is_quantised:
        return count * fmt.codes_dtype.itemsize
    if fmt is Format.Q8:
        return count + 2 * count // group
    return count // 2 + 3 * count // group


def view(tensor: Tensor) -> torch.Tensor:
    """Return an operand's elements as a flat torch tensor over the device's memory."""
    data = tensor.buffer.data  # type: ignore[attr-defined]
    part: torch.Tensor = data[tensor.offset : tensor.offset + tensor.nbytes]
    return part.view(TORCH[tensor.dtype.name])


def views(operands: Mapping[str, Tensor], *names: str) -> tuple[torch.Tensor, ...]:
    return tuple(view(operands[name]) for name in names)


def table_of(operands: Mapping[str, Tensor]) -> torch.Tensor:
    """Return the table of the pass as 32-bit words."""
    return view(operands["params"]).view(torch.int32)


def room(scratch: Tensor | None, *counts: int) -> list[torch.Tensor]:
    """Return float32 arrays of these sizes, one behind the other in the scratch memory."""
    assert scratch is not None
    data = view(scratch).view(torch.uint8)
    out, start = [], 0
    for count in counts:
        out.append(data[start : start + 4 * count].view(torch.float32))
        start += room_bytes(count)
    return out


def room_bytes(*counts: int) -> int:
    """Return the scratch bytes of float32 arrays of these sizes, each aligned."""
    return sum(-(-4 * count // 256) * 256 for count in counts)


def numerics_of(sig: Signature) -> Numerics:
    return Numerics.BF16 if sig.precision is Precision.FAST else Numerics.F32


def dot_type(sig: Signature) -> Any:
    """Return the element type that products are made in."""
    return tl.bfloat16 if sig.precision is Precision.FAST else tl.float32


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def block(n: int, least: int = 16, most: int = 1 << 20) -> int:
    """Return the power of two that holds n columns, within bounds."""
    return int(min(max(triton.next_power_of_2(n), least), most))
