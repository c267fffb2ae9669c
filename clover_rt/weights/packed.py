"""Quantised tensors: the parts of each, codes and scales, become one view.

docs/formats.md is the layout. Everything here is known from the header alone, but for
`check_scales`, which reads the scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clover_rt.errors import BadCheckpoint
from clover_rt.spec import Format, Weight
from clover_rt.spec.weight import GROUPS
from clover_rt.weights.header import Entry
from clover_rt.weights.tensor_file import TensorFile, TensorView

FORMAT, VERSION = "clover-rt-quantised", "1"
CODES, SCALE, ZERO = ".codes", ".scale", ".zero"
PARTS = (CODES, SCALE, ZERO)
DTYPES = {CODES: ("I8", "U8"), SCALE: ("F16",), ZERO: ("U8",)}
FORMATS = {"I8": Format.Q8, "U8": Format.Q4}
CHECKED_AT_ONCE = 1 << 22
# float16 bits without the sign, from which on a number is inf or NaN
NOT_FINITE = 0x7C00


@dataclass(frozen=True, slots=True)
class PackedView:
    """A quantised tensor of a mapped file; its arrays are made when they are asked for.

    group  values of K that share a scale
    """

    file: TensorFile
    codes: Entry
    scale: Entry
    zero: Entry | None
    group: int

    @property
    def format(self) -> Format:
        return FORMATS[self.codes.dtype]

    @property
    def dtype(self) -> str:
        """The type for people, such as Q4."""
        return self.format.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape [..., N, K]."""
        return _shape(self.codes)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scale, self.zero) if part is not None)

    @property
    def weight(self) -> Weight:
        """The tensor as a weight over the mapped file."""
        codes = self.file.array(self.codes, self.format.codes_dtype)
        scale = self.file.array(self.scale, np.dtype("<f2"))
        zero = None if self.zero is None else self.file.array(self.zero, np.dtype("u1"))
        return Weight(self.format, self.shape, codes, scale, zero, self.group)


View = TensorView | PackedView


def join_parts(tensors: Mapping[str, TensorView]) -> dict[str, View]:
    """Return name -> view with one view for the parts of each quantised tensor.

    Raises BadCheckpoint: CRT-1190 an unknown version, CRT-1191 metadata that names no group,
    CRT-1192 parts in a file that does not claim the format. Of one tensor: CRT-1193 a part is
    missing, CRT-1194 in another file, CRT-1195 of a wrong type, CRT-1196 of a wrong shape,
    CRT-1197 the group is not what the metadata says, or CRT-1166 it is there as a whole too.
    """
    files = {id(view.file): view.file for view in tensors.values()}
    groups = {key: _group(file) for key, file in files.items()}
    parts: dict[str, dict[str, TensorView]] = {}
    out: dict[str, View] = {}
    for name, view in tensors.items():
        stem, dot, part = name.rpartition(".")
        if dot + part not in PARTS:
            out[name] = view
            continue
        if not groups[id(view.file)]:
            text = f"tensor {name!r} is a part of a quantised one, but the metadata has no format"
            raise _bad(view.file.path, "CRT-1192", f"{text} {FORMAT!r}")
        parts.setdefault(stem, {})[dot + part] = view
    for name, found in parts.items():
        if name in out:
            text = f"tensor {name!r} is there as a whole and as parts: {', '.join(found)}"
            raise _bad(next(iter(found.values())).file.path, "CRT-1166", text)
        out[name] = _join(name, found, groups)
    return out


def check_scales(tensors: Mapping[str, View]) -> None:
    """Raise BadCheckpoint (CRT-1198) for a scale that is not finite; reads every scale once."""
    for name, view in tensors.items():
        if isinstance(view, PackedView):
            _check_scale(name, view)


def _group(file: TensorFile) -> int:
    """Return the group size of a file's 4-bit tensors, or 0 where it claims another format."""
    told = file.metadata
    if told.get("format") != FORMAT:
        return 0
    if told.get("format_version") != VERSION:
        text = f"metadata field format_version = {told.get('format_version')!r} of {FORMAT!r}"
        raise _bad(file.path, "CRT-1190", f"{text} is not known; {VERSION!r} is")
    known = [str(group) for group in GROUPS[Format.Q4]]
    if told.get("group") not in known:
        text = f"metadata field group = {told.get('group')!r} is not one of {', '.join(known)}"
        raise _bad(file.path, "CRT-1191", text)
    return int(told["group"])


def _join(name: str, parts: Mapping[str, TensorView], groups: Mapping[int, int]) -> PackedView:
    """Return the view of one tensor's parts, checked."""
    first = next(iter(parts.values()))
    file = first.file
    for part in (CODES, SCALE):
        if part not in parts:
            text = f"tensor {name!r} has no {name + part!r} beside {', '.join(parts)}"
            raise _bad(file.path, "CRT-1193", text)
    for part, view in parts.items():
        if view.file is not file:
            text = f"tensor {name + part!r} is in {view.file.path.name}, not beside its other parts"
            raise _bad(file.path, "CRT-1194", text)
        if view.dtype not in DTYPES[part] or (part == ZERO and parts[CODES].dtype == "I8"):
            wanted = " or ".join(DTYPES[part]) if view.dtype not in DTYPES[part] else "none for q8"
            text = f"tensor {name + part!r} is {view.dtype}, wanted {wanted}"
            raise _bad(file.path, "CRT-1195", text)
    return _sized(name, parts, groups[id(file)])


def _sized(name: str, parts: Mapping[str, TensorView], group: int) -> PackedView:
    codes, scale = parts[CODES].entry, parts[SCALE].entry
    zero = parts[ZERO].entry if ZERO in parts else None
    path = parts[CODES].file.path
    shape = _shape(codes)
    if len(shape) < 2 or scale.shape[:-1] != shape[:-1] or not scale.shape[-1]:
        text = f"tensor {name + SCALE!r} has {list(scale.shape)} for codes {list(codes.shape)}"
        raise _bad(path, "CRT-1196", text)
    if zero is not None and zero.shape != scale.shape:
        text = f"tensor {name + ZERO!r} has {list(zero.shape)}, but its scale {list(scale.shape)}"
        raise _bad(path, "CRT-1196", text)
    wanted = group if FORMATS[codes.dtype] is Format.Q4 else GROUPS[Format.Q8][0]
    if scale.shape[-1] * wanted != shape[-1]:
        text = f"tensor {name + SCALE!r} has {scale.shape[-1]} groups for K={shape[-1]}"
        raise _bad(path, "CRT-1197", f"{text}; groups of {wanted} were wanted")
    return PackedView(parts[CODES].file, codes, scale, zero, wanted)


def _shape(codes: Entry) -> tuple[int, ...]:
    """Return the logical shape of codes: a byte holds two of 4 bits."""
    if FORMATS[codes.dtype] is Format.Q8 or not codes.shape:
        return codes.shape
    return (*codes.shape[:-1], 2 * codes.shape[-1])


def _check_scale(name: str, view: PackedView) -> None:
    scale = view.weight.scale
    assert scale is not None
    bits = scale.reshape(-1).view(np.uint16)
    for lo in range(0, len(bits), CHECKED_AT_ONCE):
        part = bits[lo : lo + CHECKED_AT_ONCE]
        sizes = part & 0x7FFF
        view.file.release_array(part)
        if sizes.max() >= NOT_FINITE:
            at = lo + int(np.argmax(sizes >= NOT_FINITE))
            index = [int(i) for i in np.unravel_index(at, scale.shape)]
            text = f"tensor {name + SCALE!r}{index} is {scale.reshape(-1)[at]}"
            raise _bad(view.file.path, "CRT-1198", text)


def _bad(path: Path, code: str, text: str) -> BadCheckpoint:
    return BadCheckpoint(
        what=f"{path.name} is not a sound quantised file",
        evidence=f"{path}: {text}",
        fix="make the file again with `clover-rt quantize`, or use the version that wrote it",
        code=code,
    )
