"""What the generated kernels share: the threads, the generated code, addresses of operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Kernel, Tensor
from clover_rt.spec import Numerics, Precision, Signature
from clover_rt_cpu.jit import amx
from clover_rt_cpu.jit.build import Library
from clover_rt_cpu.jit.isa import Isa
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.product import Inner
from clover_rt_cpu.jit.team import NativeStep, Team
from clover_rt_cpu.jit.values import I32, I64, Value

Array = npt.NDArray[Any]
Call = tuple[int, Array]
PLAIN_TYPES = ("float32", "int32", "uint32", "uint8")


class Jit:
    """Generated code of one instruction set and the threads that run it."""

    def __init__(self, isa: Isa, threads: int, cache: Path | None = None) -> None:
        self.isa = isa
        self.library = Library(isa, cache)
        self.team = Team(self.library, threads)
        self._tiles: dict[Inner, Array] = {}

    def use_threads(self, count: int) -> None:
        """Give steps that are bound from now on a team of so many."""
        self.team = Team(self.library, count)

    def tiles(self, inner: Inner) -> int:
        """Return the address of the addresses of an inner loop's functions.

        One for each row count, and behind them the one for many rows where there is one.
        """
        if inner not in self._tiles:
            unit = f"product_{inner.name}"
            names = [f"tile_{n}" for n in inner.tiles]
            found = [self.library.function(unit, n, inner.emit) for n in names]
            if inner.has_many:
                many = self.library.function(
                    f"{unit}_many", "tile_many", lambda m: amx.emit(m, inner)
                )
                found.append(many)
            # another thread may have been faster, and its array be in use already
            self._tiles.setdefault(inner, np.array(found, np.int64))
        return int(self._tiles[inner].ctypes.data)


class JitKernel(Kernel):
    """A generated kernel: float32 but for `products`, rows independent.

    types     element types of operands
    products  weights whose rows of activations are rounded to 8 bits where both allow it
    """

    products: tuple[str, ...] = ()
    types: tuple[str, ...] = PLAIN_TYPES

    def __init__(self, jit: Jit) -> None:
        self.jit = jit

    def numerics(self, sig: Signature) -> Numerics:
        """Return what this signature is computed with."""
        rounds = any(is_rounded(sig, name) for name in self.products)
        return Numerics.INT8_G32 if rounds else Numerics.F32

    def supports(self, sig: Signature) -> str:
        return self.denial(sig) or self.misfit(sig)

    def misfit(self, sig: Signature) -> str:
        """Return why another kernel should run this, or "": the same for every table and bucket."""
        for name, dtype in sig.dtypes:
            if dtype not in self.types:
                return f"operand {name} is {dtype}; cpu computes with {' or '.join(self.types)}"
        return self.refusal(sig)

    def refusal(self, sig: Signature) -> str:
        """Return why sizes or formats do not work, both numbers in it, or ""."""
        return ""

    def denial(self, sig: Signature) -> str:
        """Return why no kernel can run this, or ""."""
        return ""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def call(self, unit: str, emit: Any, *words: int) -> Call:
        """Return a call of a unit's function of the same name with these argument words."""
        address = self.jit.library.function(unit, unit, lambda m: emit(m, unit))
        return address, np.array(words, np.int64)

    def step(self, calls: Sequence[Call], operands: Mapping[str, Tensor], *kept: Any) -> NativeStep:
        """Return a step; all memory that it points at stays as long as it, freed buffers too."""
        tensors = [*operands.values(), *(k for k in kept if isinstance(k, Tensor))]
        return NativeStep(self.jit.team, calls, (self.jit, [memory(t) for t in tensors], kept))


def quantises(sig: Signature) -> bool:
    """Are rows rounded to 8 bits where the weight is quantised?"""
    return sig.precision is Precision.FAST


def is_rounded(sig: Signature, weight: str) -> bool:
    """Are the rows that a weight is multiplied with rounded to 8 bits?"""
    return quantises(sig) and sig.format(weight)[0].is_quantised


def memory(tensor: Tensor) -> Array:
    """Return the bytes of an operand."""
    array: Array = tensor.buffer.part(tensor.offset, tensor.nbytes)  # type: ignore[attr-defined]
    return array


def address(tensor: Tensor) -> int:
    """Return where an operand lies."""
    return int(memory(tensor).ctypes.data)


def addresses(operands: Mapping[str, Tensor], *names: str) -> tuple[int, ...]:
    """Return where operands lie; 0 for one that is absent."""
    return tuple(address(operands[n]) if n in operands else 0 for n in names)


def section(sig: Signature, name: str) -> int:
    """Return the byte offset of a section of the step table."""
    offset, _, _ = sig.layout.sections[name]
    return offset


def row_count(code: Code, params: Value) -> Value:
    """Return the rows of the pass, from the header of the step table."""
    return code.load(I32, params + 4).to(I64)


def padded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
