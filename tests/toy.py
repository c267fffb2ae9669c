"""A small host device for tests of the plan: opaque buffers, any set of kernels."""

from __future__ import annotations

from collections import Counter

import numpy as np

from clover_rt.backend import Buffer, Device, Usage
from clover_rt.ops import OPS
from clover_rt.plan.reference import ReferenceKernel
from clover_rt.spec import Tier

PRIMITIVES = tuple(name for name, spec in OPS.items() if spec.tier is Tier.PRIMITIVE)


class ToyBuffer(Buffer):
    """Memory that only its device can read."""

    def __init__(self, nbytes: int, usage: Usage) -> None:
        self.nbytes = nbytes
        self.usage = usage
        self._bytes = np.zeros(nbytes, np.uint8)


class ToyKernel(ReferenceKernel):
    """An op's reference that notes what the plan asks of it.

    refuse  signature -> "" or a sentence: what `supports` answers
    """

    def __init__(self, spec, device, refuse) -> None:
        super().__init__(spec, device)
        self._refuse = refuse

    def supports(self, sig):
        self.device.asked[sig] += 1
        return self._refuse(sig)

    def prepare(self, sig, weights):
        self.device.prepared.append((sig, tuple(w.name for w in weights.values())))
        return super().prepare(sig, weights)

    def bind(self, sig, operands, prepared, scratch):
        self.device.bound.append((sig, dict(operands)))
        return super().bind(sig, operands, prepared, scratch)


class ToyDevice(Device):
    """A device whose kernels are the references of the ops named.

    asked      how often `supports` was asked, by signature
    prepared   (signature, weight names) of every `prepare`
    bound      (signature, operands) of every `bind`
    allocated  how many buffers of each usage were allocated
    transfers  uploads and downloads;  captured  captures
    poison     fills new edge memory with 0xff bytes, which are NaN as floats
    """

    def __init__(self, name: str, ops=(), refuse=lambda sig: "", poison: bool = False) -> None:
        self.name = name
        self.kernels = {op: ToyKernel(OPS[op], self, refuse) for op in ops}
        self.asked: Counter = Counter()
        self.prepared: list = []
        self.bound: list = []
        self.allocated: Counter = Counter()
        self.transfers = 0
        self.captured = 0
        self.poison = poison

    def alloc(self, nbytes: int, usage: Usage) -> ToyBuffer:
        self.allocated[usage] += 1
        buffer = ToyBuffer(nbytes, usage)
        if self.poison and usage is Usage.EDGE:
            buffer._bytes[:] = 0xFF
        return buffer

    def free(self, buffer: Buffer) -> None:
        pass

    def copy(self, dst, dst_offset, src, src_offset, n) -> None:
        dst._bytes[dst_offset : dst_offset + n] = src._bytes[src_offset : src_offset + n].copy()

    def upload(self, dst, offset, src) -> None:
        self.transfers += 1
        raw = np.ascontiguousarray(src).reshape(-1).view(np.uint8)
        assert offset + raw.size <= dst.nbytes
        dst._bytes[offset : offset + raw.size] = raw

    def download(self, src, offset, dst) -> None:
        self.transfers += 1
        raw = dst.reshape(-1).view(np.uint8)
        raw[:] = src._bytes[offset : offset + raw.size]

    def capture(self, steps):
        self.captured += 1
        return super().capture(steps)
