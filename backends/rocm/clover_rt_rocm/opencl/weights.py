"""Weights on the device, and what kernels take of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.buffers import Part, in_parts
from clover_rt.spec import Format, HostWeight
from clover_rt_rocm.opencl.device import ClBuffer, ClDevice
from clover_rt_rocm.opencl.program import weight_text

FIELDS = ("codes", "scale", "zero")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [..., N, K] on the device."""

    format: Format
    group: int
    parts: tuple[Part[ClBuffer], ...]

    def arguments(self, part: Part[ClBuffer]) -> tuple[Any, ...]:
        """Return the arguments of the macro WEIGHT; what a format lacks is never read."""
        codes = part.buffers["codes"]
        handles = [part.buffers.get(name, codes).handle for name in FIELDS]
        return (*handles, np.int32(self.group or 1))

    def text(self, name: str, *files: str) -> str:
        """Return source files compiled for this weight, as functions with its name."""
        return weight_text(name, self.format.value, self.parts[0].has_zero, *files)


def matrices(
    device: ClDevice, weights: Mapping[str, HostWeight], multiple: int = 1
) -> dict[str, Matrix]:
    """Copy weights to the device, all cut at the same rows, `multiple` or more of them."""
    parts = in_parts(device, weights, multiple)
    return {name: Matrix(w.format, w.group, parts[name]) for name, w in weights.items()}


def vector(device: ClDevice, values: npt.NDArray[Any], what: str) -> ClBuffer:
    """Copy numbers to the device as float32."""
    data = np.ascontiguousarray(values, np.float32)
    buffer = device.allocate(data.nbytes, what)
    device.upload(buffer, 0, data)
    return buffer
