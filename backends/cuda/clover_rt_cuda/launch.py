"""Steps as data: what a kernel's `bind` returns can be looked into before it runs.

A device compiles the launches of a pass ahead of its first run, and records them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from clover_rt.spec import Signature

if TYPE_CHECKING:
    from clover_rt_cuda.device import CudaDevice

OPTIONS = ("num_warps", "num_stages")
"""What is told to the compiler beside a kernel's own constants."""
FUSED: Mapping[str, Any] = {"enable_fp_fusion": True}
"""Told of each kernel: a product and a sum round once. Triton from 3.10 on would not do so."""
ALIGNED = 16
NARROW_BYTES = 1 << 31
"""Memory that 32 bits of an offset reach all of; compilers for AMD make use of it."""


class CudaStep(Protocol):
    """A step of this backend.

    bounds    lengths of a prefix at which its launches change, rising
    launches  returns them for passes whose prefixes are at most this long
    """

    @property
    def bounds(self) -> tuple[int, ...]: ...

    def launches(self, prefix: int) -> tuple[Launch, ...]: ...

    def __call__(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One launch of a kernel; a call makes it."""

    device: CudaDevice
    sig: Signature
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    meta: Mapping[str, Any]

    @property
    def bounds(self) -> tuple[int, ...]:
        return ()

    def launches(self, prefix: int) -> tuple[Launch, ...]:
        return (self,)

    def __call__(self) -> None:
        self.device.launch(self.sig, self.kernel, self.grid, *self.args, **self.meta)

    @property
    def program(self) -> tuple[Any, ...]:
        """Return what the compiler sees: launches that are equal here share one program."""
        kinds = tuple(_kind(value) for value in self.args)
        return (self.kernel, kinds, tuple(sorted(self.meta.items(), key=lambda item: item[0])))


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps one after the other."""

    steps: tuple[CudaStep, ...]

    @property
    def bounds(self) -> tuple[int, ...]:
        return tuple(sorted({bound for step in self.steps for bound in step.bounds}))

    def launches(self, prefix: int) -> tuple[Launch, ...]:
        return tuple(launch for step in self.steps for launch in step.launches(prefix))

    def __call__(self) -> None:
        for step in self.steps:
            step()


@dataclass(frozen=True, slots=True, eq=False)
class ByPrefix:
    """A step that takes other launches where every prefix of a pass is short.

    bound  the longest prefix that is short
    """

    device: CudaDevice
    bound: int
    short: CudaStep
    long: CudaStep

    @property
    def bounds(self) -> tuple[int, ...]:
        return (self.bound,)

    def launches(self, prefix: int) -> tuple[Launch, ...]:
        return (self.short if prefix <= self.bound else self.long).launches(prefix)

    def __call__(self) -> None:
        (self.short if self.device.prefix <= self.bound else self.long)()


def sequence(steps: Sequence[CudaStep]) -> CudaStep:
    """Return one step that runs several."""
    return steps[0] if len(steps) == 1 else Steps(tuple(steps))


def _kind(value: Any) -> Any:
    """Return what of an argument is compiled in: its type, whether 16 divides it, its size."""
    if isinstance(value, torch.Tensor):
        nbytes = value.untyped_storage().nbytes()
        return value.dtype, value.data_ptr() % ALIGNED == 0, nbytes < NARROW_BYTES
    if type(value) is int:
        return "one" if value == 1 else ("int", value % ALIGNED == 0, value >= 1 << 31)
    return value if value is None else type(value)
