"""What every kernel of this engine shares: refusals, prepared vectors, launches, scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from clover_rt.backend import Kernel, Tensor
from clover_rt.ops import OPS
from clover_rt.ops.common import weight_bytes
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import ClBuffer, ClDevice, Launch
from clover_rt_rocm.opencl.program import defines, text

PLAIN_TYPES = ("float32", "int32", "uint32", "uint8")
KV_TYPES = (*PLAIN_TYPES, "bfloat16")
# numbers of a column of the memory that a work-item holds in registers
WIDEST_KEY = 256
# work-items of a group of the elementwise kernels
ITEMS = 64


class ClKernel(Kernel):
    """A kernel in float32.

    types      element types that its operands may have
    kept       weights that stay in their format; the others become float32
    """

    types: tuple[str, ...] = PLAIN_TYPES
    kept: tuple[str, ...] = ()

    def __init__(self, device: ClDevice) -> None:
        self.device = device

    def supports(self, sig: Signature) -> str:
        for name, dtype in sig.dtypes:
            if dtype not in self.types:
                return f"operand {name} is {dtype}; OpenCL has {' or '.join(self.types)}"
        return ""

    def prepared_bytes(self, sig: Signature) -> int:
        total = 0.0
        for name, _, _ in sig.formats:
            count = math.prod(OPS[sig.op].shape(name, dict(sig.axes)))
            total += weight_bytes(sig, name, count) if name in self.kept else 4 * count
        return int(total)

    def scratch(self, sig: Signature) -> int:
        return sum(self._aligned(n) for n in self.rooms(sig).values())

    def rooms(self, sig: Signature) -> dict[str, int]:
        """Return the bytes of each scratch array by name."""
        return {}

    def room(self, sig: Signature, scratch: Tensor | None) -> dict[str, Tensor]:
        """Return the scratch arrays as tensors over the scratch memory."""
        out, start = {}, 0
        for name, nbytes in self.rooms(sig).items():
            assert scratch is not None, f"{sig.op} needs scratch memory"
            offset = scratch.offset + start
            out[name] = Tensor(scratch.buffer, np.dtype(np.uint8), (nbytes,), offset)
            start += self._aligned(nbytes)
        return out

    def launch(
        self,
        sources: str | Sequence[str],
        name: str,
        groups: Sequence[int],
        *arguments: Any,
        items: int = ITEMS,
        **given: Any,
    ) -> Launch:
        """Return a kernel with its arguments set.

        sources    names of source files without the ending, or text; the table's comes first
        groups     work-groups along each axis; a group has `items` work-items along the first
        arguments  tensors and buffers, int32 and float32 numbers, local memory
        given      names that the sources are compiled with
        """
        names = (sources,) if isinstance(sources, str) else sources
        parts = [text(n) if "\n" not in n else n for n in names]
        kernel = self.device.programs.kernel(defines(given) + text("table") + "".join(parts), name)
        values = [self._argument(a) for a in arguments]
        for i, value in enumerate(values):
            kernel.set_arg(i, value)
        group = (items,) + (1,) * (len(groups) - 1)
        grid = (groups[0] * items, *groups[1:])
        return Launch(name, kernel, grid, group, tuple(values))

    def too_local(self, nbytes: int, what: str) -> str:
        """Return "" where a group's local memory has room, else a refusal with both numbers."""
        limit = int(self.device.handle.local_mem_size)
        return "" if nbytes <= limit else f"{nbytes} bytes for the {what} exceed {limit}"

    def _aligned(self, nbytes: int) -> int:
        return ceil(nbytes, self.device.alignment) * self.device.alignment

    def _argument(self, value: Any) -> Any:
        match value:
            case Tensor():
                return self.device.view(value)
            case ClBuffer():
                return value.handle
            case bool() | int():
                return np.int32(value)
            case float():
                return np.float32(value)
        return value


def at(sig: Signature, section: str) -> int:
    """Return the word of the step table that a section starts at."""
    return sig.layout.sections[section][0] // 4


def ceil(n: int, d: int) -> int:
    return -(-n // d)


def segments_of(sig: Signature) -> int:
    """Return the groups of a grid over segments; kernels take more than one where they must."""
    return min(sig.layout.segments, sig["T"])


def too_wide_key(sig: Signature) -> str:
    return f"K={sig['K']} exceeds {WIDEST_KEY}, a column" if sig["K"] > WIDEST_KEY else ""


def kv_type(sig: Signature) -> dict[str, int]:
    """Return what the sources are compiled with for the type of the KV pools."""
    return {"KV_BF16": 1} if sig.dtype("k_pool").itemsize == 2 else {}


def local(numbers: int, nbytes: int = 4) -> Any:
    """Return local memory for numbers of a size, as an argument."""
    return cl.LocalMemory(numbers * nbytes)
