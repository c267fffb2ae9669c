"""Weights on the device, and what shaders take of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.buffers import Part, in_parts
from clover_rt.spec import Format, HostWeight
from clover_rt_vulkan.device import FORMATS, VulkanBuffer, VulkanDevice

Array = npt.NDArray[Any]
FIELDS = ("codes", "scale", "zero")
# shaders count the numbers of a buffer in 32 bits
MOST_NUMBERS = 1 << 31


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [..., N, K] on the device."""

    format: Format
    group: int
    width: int
    parts: tuple[Part[VulkanBuffer], ...]

    def buffers(self, name: str, part: Part[VulkanBuffer]) -> dict[str, VulkanBuffer]:
        """Return a part's buffers by a shader's names; what a format lacks is never read."""
        codes = part.buffers["codes"]
        names = (name, f"{name}_scale", f"{name}_zero")
        return {n: part.buffers.get(field, codes) for n, field in zip(names, FIELDS, strict=True)}

    def constants(self, name: str) -> dict[str, int]:
        """Return the constants that choose how a shader decodes this weight."""
        prefix, has_zero = name.upper(), self.parts[0].has_zero
        chosen = {f"{prefix}_FORMAT": FORMATS[self.format], "RAGGED": int(self.width % 8 != 0)}
        if self.format.is_quantised:
            chosen |= {f"{prefix}_GROUP": self.group, f"{prefix}_ZERO": int(has_zero)}
        return chosen


def matrices(
    device: VulkanDevice, weights: Mapping[str, HostWeight], multiple: int = 1
) -> dict[str, Matrix]:
    """Copy weights to the device, all cut at the same rows, `multiple` or more of them."""
    parts = in_parts(device, weights, multiple, MOST_NUMBERS)
    return {
        name: Matrix(w.format, w.group, w.shape[-1], parts[name]) for name, w in weights.items()
    }


def vector(device: VulkanDevice, values: Array, what: str) -> VulkanBuffer:
    """Copy numbers to the device as float32."""
    data = np.ascontiguousarray(values, np.float32)
    buffer = device.allocate(data.nbytes, what)
    device.upload(buffer, 0, data)
    return buffer


def vectors(device: VulkanDevice, weights: Mapping[str, HostWeight]) -> dict[str, VulkanBuffer]:
    """Copy weights to the device as float32."""
    return {
        name: vector(device, w.whole().values(np.float32), w.name) for name, w in weights.items()
    }
