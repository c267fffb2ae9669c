"""What every kernel of this backend shares: refusals and dispatches."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from clover_rt.backend import Tensor
from clover_rt.buffers import BufferKernel
from clover_rt.errors import CloverError
from clover_rt.spec import Signature
from clover_rt_vulkan.device import VulkanBuffer, VulkanDevice
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.library import Shader

KV_TYPES = (*BufferKernel.types, "bfloat16")
# numbers of a column of the memory that a work-item holds in registers
WIDEST_KEY = 256
# work-items of a group, unless a shader asks for others
ITEMS = 64
SECTIONS = (
    *("segments", "controls", "wanted", "page_deltas", "count_deltas", "advances"),
    *("tokens", "row_segment"),
)


class VulkanKernel(BufferKernel):
    """A kernel in float32."""

    device: VulkanDevice

    def dispatch(
        self,
        sig: Signature,
        name: str,
        groups: Sequence[int],
        buffers: Mapping[str, Tensor | VulkanBuffer],
        constants: Mapping[str, int] | None = None,
        /,
        **push: int | float,
    ) -> Dispatch:
        """Return one call of a shader.

        groups     along x, y and z; axes that are left out have one
        buffers    by the names of the shader, and no others
        push       what the shader takes besides: sections of the step table are filled in
        constants  specialisation constants besides the number of work-items
        Raises CRT-9034 where the shader takes other names, or where a limit is exceeded.
        """
        device = self.device
        shader = device.library.shaders[name]
        values = {s: at(sig, s) for s in SECTIONS} | {f"{b}_at": 0 for b in shader.buffers} | push
        given = dict(constants or {})
        if "ITEMS" in shader.constants:
            given.setdefault("ITEMS", ITEMS)
        grid = (*groups, 1, 1)[:3]
        problem = _problem(shader, buffers, values, push, given)
        if not problem and any(g > m for g, m in zip(grid, device.limits.groups, strict=True)):
            problem = f"{list(grid)} groups exceed {list(device.limits.groups)}"
        if problem:
            raise CloverError(
                what=f"shader {name} was to be bound for {sig.op}",
                evidence=problem,
                fix="report this as a bug of the vulkan backend",
                code="CRT-9034",
            )
        ids = {shader.constants[key]: int(value) for key, value in given.items()}
        return Dispatch(
            sig.op,
            device.pipeline(shader, ids),
            (grid[0], grid[1], grid[2]),
            tuple(device.binding(buffers[b], b in shader.written) for b in shader.buffers),
            b"".join(_packed(kind, values[key]) for key, kind in shader.push),
        )

    def too_shared(self, nbytes: int, what: str) -> str:
        """Return "" where a group's shared memory has room, else a refusal with both numbers."""
        limit = self.device.limits.shared
        return "" if nbytes <= limit else f"{nbytes} bytes for the {what} exceed {limit}"


def at(sig: Signature, section: str) -> int:
    """Return the word of the step table that a section starts at."""
    return sig.layout.sections[section][0] // 4


def up(n: int, d: int) -> int:
    """Return n / d rounded up."""
    return -(-n // d)


def segments_of(sig: Signature) -> int:
    """Return the groups of a grid over segments; shaders take more than one where they must."""
    return min(sig.layout.segments, sig["T"])


def too_wide_key(sig: Signature) -> str:
    return f"K={sig['K']} exceeds {WIDEST_KEY}, a column" if sig["K"] > WIDEST_KEY else ""


def odd_pool(sig: Signature) -> str:
    """Return "" where a row of a KV pool is whole words, else a refusal."""
    width = sig["G"] * sig["K"]
    return f"G*K={width} is odd, and 2 bfloat16 lie in a word" if is_bf16(sig) and width % 2 else ""


def is_bf16(sig: Signature) -> int:
    """Return the constant for the type of the KV pools."""
    return int(sig.dtype("k_pool").itemsize == 2)


def _problem(
    shader: Shader,
    buffers: Mapping[str, object],
    values: Mapping[str, int | float],
    push: Mapping[str, int | float],
    constants: Mapping[str, int],
) -> str:
    """Return "" where the names are those of the shader, else which are not."""
    names = {name for name, _ in shader.push}
    for what, given, taken, needed in (
        ("buffers", set(buffers), set(shader.buffers), set(shader.buffers)),
        ("push constants", set(push), names, names - values.keys()),
        ("constants", set(constants), set(shader.constants), set()),
    ):
        strange = given - taken
        missing = needed - given if what == "buffers" else needed
        if strange or missing:
            told = f"unknown {sorted(strange)}" if strange else f"missing {sorted(missing)}"
            return f"{what}: {told}; it takes {sorted(taken)}"
    return ""


def _packed(kind: str, value: int | float) -> bytes:
    if kind == "float":
        return struct.pack("<f", value)
    return struct.pack("<i" if kind == "int" else "<I", int(value))
