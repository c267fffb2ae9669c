"""A device that only counts: what a plan would allocate and prepare, with no memory behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from clover_rt.backend import Buffer, Device, Kernel, Prepared, Step, Tensor, Usage
from clover_rt.spec import HostWeight, Numerics, Precision, Signature

Array = npt.NDArray[Any]


class CountedBuffer(Buffer):
    """A size without memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class CountingDevice(Device):
    """Stands in for an opened device: its kernels answer, its memory is only counted.

    allocated  bytes by usage
    largest    bytes of the largest buffer
    prepared   bytes that `prepare` would allocate, over all nodes
    mapped     bytes of the weights that the kernels read in place, each weight once
    """

    def __init__(self, real: Device) -> None:
        self.name = real.name
        self.alignment = real.alignment
        self.views = real.views
        # a limit is reported beside the sizes; it must not end the count
        self.max_binding_bytes = 0
        self.kernels: Mapping[str, Kernel] = {
            op: CountingKernel(kernel, self) for op, kernel in real.kernels.items()
        }
        self._real = real
        self._mapped: dict[int, HostWeight] = {}
        self.allocated: Counter[Usage] = Counter()
        self.largest = 0
        self.prepared = 0

    @property
    def mapped(self) -> int:
        return sum(weight.nbytes for weight in self._mapped.values())

    def note(self, nbytes: int, weights: Mapping[str, HostWeight]) -> None:
        """Count what one node's `prepare` takes; none means that it reads the weights in place."""
        self.prepared += nbytes
        if nbytes == 0:
            self._mapped.update((id(weight), weight) for weight in weights.values())

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        self.allocated[usage] += nbytes
        self.largest = max(self.largest, nbytes)
        return CountedBuffer(nbytes)

    def free(self, buffer: Buffer) -> None:
        """There is nothing to free."""

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        """There is nothing to copy."""

    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        """There is nothing to fill."""

    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        """There is nothing to read."""

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        return self._real.dtypes(precision)


class CountingKernel(Kernel):
    """Asks a real kernel for its sizes, and neither prepares nor runs it."""

    def __init__(self, real: Kernel, device: CountingDevice) -> None:
        self._real = real
        self._device = device

    def numerics(self, sig: Signature) -> Numerics:
        return self._real.numerics(sig)

    def row_invariant(self, sig: Signature) -> bool:
        return self._real.row_invariant(sig)

    def supports(self, sig: Signature) -> str:
        return self._real.supports(sig)

    def scratch(self, sig: Signature) -> int:
        return self._real.scratch(sig)

    def prepared_bytes(self, sig: Signature) -> int:
        return self._real.prepared_bytes(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        self._device.note(self._real.prepared_bytes(sig), weights)
        return None

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        return _nothing


def _nothing() -> None:
    """A step of a plan that is never run."""
