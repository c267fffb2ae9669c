"""Devices that are right but for one bug: a reference with words changed, or a planted fault."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from clover_rt.backend import Device, Kernel, Step, Tensor
from clover_rt.ops import OPS
from clover_rt.plan.reference import ReferenceKernel
from clover_rt.spec import Signature, StepParams, Tier
from clover_rt_conformance.reference_device import ReferenceDevice, bytes_of

Edit = tuple[str, str]
Make = Callable[[], Device]
PRIMITIVES = tuple(name for name, spec in OPS.items() if spec.tier is Tier.PRIMITIVE)


class Call:
    """One call of a kernel: its operands as arrays over the device's memory, and the table."""

    def __init__(
        self,
        operands: Mapping[str, Tensor],
        weights: Mapping[str, Any],
        scratch: Tensor | None,
        sig: Signature,
    ) -> None:
        self.arrays = {n: view(t) for n, t in operands.items()}
        self.tensors = operands
        self.weights = {n: w.whole() for n, w in weights.items()}
        self.scratch = None if scratch is None else view(scratch)
        self.params = StepParams(sig.layout, self.arrays["params"])
        self.number = 0

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    @property
    def rows(self) -> int:
        return self.params.rows

    def behind(self, name: str) -> Any:
        """Return the 4 bytes right behind an operand."""
        at = self.tensors[name]
        stop = at.offset + at.nbytes
        return bytes_of(at.buffer)[stop : stop + 4]


Fault = Callable[[Call], None]


def view(at: Tensor) -> Any:
    raw = bytes_of(at.buffer)[at.offset : at.offset + at.nbytes]
    return raw.view(at.dtype).reshape(at.shape)


class Faulty(ReferenceKernel):
    """A right kernel, and a fault after each of its calls."""

    def __init__(self, op: str, device: Device, fault: Fault, scratch_bytes: int = 0) -> None:
        super().__init__(OPS[op], device)
        self.fault, self.scratch_bytes = fault, scratch_bytes

    def scratch(self, sig: Signature) -> int:
        return self.scratch_bytes

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Any,
        scratch: Tensor | None,
    ) -> Step:
        right = super().bind(sig, operands, prepared, scratch)
        call = Call(operands, prepared, scratch, sig)

        def step() -> None:
            right()
            with np.errstate(all="ignore"):
                self.fault(call)
            call.number += 1

        return step


class Changed(ReferenceKernel):
    """A kernel that runs another reference."""

    def __init__(self, op: str, device: Device, reference: Any) -> None:
        super().__init__(OPS[op], device)
        self.other = {op: replace(OPS[op], reference=reference)}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Any,
        scratch: Tensor | None,
    ) -> Step:
        right = super().bind(sig, operands, prepared, scratch)

        def step() -> None:
            # while it runs, and not while its answer is judged
            with patch.dict(OPS, self.other), np.errstate(all="ignore"):
                right()

        return step


class Refusing(Kernel):
    """Claims everything, or refuses without a word, and never runs."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def supports(self, sig: Signature) -> str:
        return "" if self.error is not None else " "

    def bind(self, sig: Signature, operands: Any, prepared: Any, scratch: Any) -> Step:
        assert self.error is not None
        raise self.error


def words(op: str, *edits: Edit, function: str = "reference") -> Make:
    """Return a maker of a device whose reference of one op has words changed.

    function  of the op's module, where the words are; the reference then calls the changed one
    Raises ValueError where the words are gone: the right code has changed, the edit must follow.
    """

    def make() -> Device:
        reference = OPS[op].reference
        assert reference is not None
        names: dict[str, Any] = dict(reference.__globals__)
        source = textwrap.dedent(inspect.getsource(names[function]))
        for old, new in edits:
            if old not in source:
                raise ValueError(f"{op}.{function} has no {old!r}; its source:\n{source}")
            source = source.replace(old, new)
        exec(compile(source, f"<wrong {op}.{function}>", "exec"), names)
        if function != "reference":
            exec(textwrap.dedent(inspect.getsource(reference)), names)
        return with_kernel(op, lambda d: Changed(op, d, names["reference"]))

    return make


def fault(op: str, what: Fault, scratch_bytes: int = 0) -> Make:
    """Return a maker of a device with a fault after each call of one op."""

    return lambda: with_kernel(op, lambda d: Faulty(op, d, what, scratch_bytes))


def kernel(op: str, made: Kernel) -> Make:
    """Return a maker of a device that has another kernel for an op."""

    return lambda: with_kernel(op, lambda _: made)


def with_kernel(op: str, made: Callable[[Device], Kernel]) -> Device:
    """Return a right device with one kernel of another make; layer ops run as primitives."""
    device = ReferenceDevice(ops=PRIMITIVES)
    device.kernels = {**device.kernels, op: made(device)}
    return device


class DropsTail(ReferenceDevice):
    """Uploads whole words of eight bytes only."""

    def upload(self, dst: Any, offset: int, src: Any) -> None:
        raw = np.ascontiguousarray(src).reshape(-1).view(np.uint8)
        super().upload(dst, offset, raw[: raw.size // 8 * 8 - 8 * (offset == 0)])


class CopiesWords(ReferenceDevice):
    """Copies whole words of four bytes only."""

    def copy(self, dst: Any, dst_offset: int, src: Any, src_offset: int, n: int) -> None:
        super().copy(dst, dst_offset, src, src_offset, n // 4 * 4)


class ReusesMemory(ReferenceDevice):
    """Hands out freed memory as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.spare: list[Any] = []

    def alloc(self, nbytes: int, usage: Any) -> Any:
        for buffer in self.spare:
            if buffer.nbytes == nbytes:
                self.spare.remove(buffer)
                return buffer
        return super().alloc(nbytes, usage)

    def free(self, buffer: Any) -> None:
        self.spare.append(buffer)
