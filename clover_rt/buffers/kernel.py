"""A kernel that keeps some weights as they are stored, and has scratch arrays by name."""

from __future__ import annotations

import math

import numpy as np

from clover_rt.backend import Device, Kernel, Tensor
from clover_rt.ops import OPS
from clover_rt.ops.common import weight_bytes
from clover_rt.spec import Signature


class BufferKernel(Kernel):
    """What a kernel needs to say of itself; a subclass has `prepare` and `bind`.

    types  element types that its operands may have
    kept   weights that stay in their format; the others become float32
    """

    types: tuple[str, ...] = ("float32", "int32", "uint32", "uint8")
    kept: tuple[str, ...] = ()

    def __init__(self, device: Device) -> None:
        self.device = device

    def supports(self, sig: Signature) -> str:
        for name, dtype in sig.dtypes:
            if dtype not in self.types:
                return f"operand {name} is {dtype}; this kernel takes {' or '.join(self.types)}"
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

    def _aligned(self, nbytes: int) -> int:
        return -(-nbytes // self.device.alignment) * self.device.alignment
