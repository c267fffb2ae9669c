"""What every kernel of this engine shares: refusals and launches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from clover_rt.backend import Tensor
from clover_rt.buffers import BufferKernel
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import ClBuffer, ClDevice, Launch
from clover_rt_rocm.opencl.program import defines, text

KV_TYPES = (*BufferKernel.types, "bfloat16")
# numbers of a column of the memory that a work-item holds in registers
WIDEST_KEY = 256
# work-items of a group of the elementwise kernels
ITEMS = 64


class ClKernel(BufferKernel):
    """A kernel; rows are float32."""

    device: ClDevice

    def launch(
        self,
        sig: Signature,
        sources: str | Sequence[str],
        name: str,
        groups: Sequence[int],
        *arguments: Any,
        items: int = ITEMS,
        **given: Any,
    ) -> Launch:
        """Return a kernel's call; it is compiled when it first runs.

        sources    names of source files without the ending, or text; the table's comes first
        groups     work-groups along each axis; a group has `items` work-items along the first
        arguments  tensors and buffers, int32 and float32 numbers, local memory
        given      names that the sources are compiled with
        """
        names = (sources,) if isinstance(sources, str) else sources
        parts = [text(n) if "\n" not in n else n for n in names]
        before = defines(given) + self.device.capabilities.text + text("table")
        values = tuple(self._argument(a) for a in arguments)
        group = (items,) + (1,) * (len(groups) - 1)
        grid = (groups[0] * items, *groups[1:])
        # layers share their sources
        source = sys.intern(before + "".join(parts))
        return Launch(sig, source, name, values, grid, group)

    def too_local(self, nbytes: int, what: str) -> str:
        """Return "" where a group's local memory has room, else a refusal with both numbers."""
        limit = int(self.device.handle.local_mem_size)
        return "" if nbytes <= limit else f"{nbytes} bytes for the {what} exceed {limit}"

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
