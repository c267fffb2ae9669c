"""The header of a safetensors file: eight bytes of length, a JSON object, then the data.

Written here because a release in per-expert layout has about a hundred thousand tensors, and
because a damaged file should say which tensor is damaged and how.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover_rt.errors import BadCheckpoint

MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 32
ITEM_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file: its type by the format's name, its shape, its first byte of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a file by name, and what its metadata says of it."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]


def parse_header(blob: bytes, path: Path) -> Header:
    """Return the entries and metadata of a header's JSON; `start` counts from the first data byte.

    Raises BadCheckpoint: CRT-1154 not UTF-8, CRT-1143 not JSON, CRT-1130 not an object, CRT-1147 a
    name that occurs twice, CRT-1135 malformed metadata, CRT-1131 a name that is not Unicode,
    CRT-1137 tensors that overlap, CRT-1138 a hole between them. Of one entry: CRT-1144 a field is
    missing, CRT-1132 of a wrong type, CRT-1133 too many dimensions, CRT-1134 a number that is no
    size, CRT-1136 larger than any file, CRT-1145 an unknown dtype, CRT-1146 a byte range that does
    not fit shape and dtype.
    """
    try:
        # decoded first: a JSON reader guesses at UTF-16 and UTF-32, and the format is UTF-8
        text = blob.decode()
    except UnicodeDecodeError as error:
        raise _bad(path, "CRT-1154", f"its header is not UTF-8: {error}") from error
    twice: list[str] = []
    try:
        table = json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, twice))
    except (ValueError, RecursionError) as error:
        raise _bad(path, "CRT-1143", f"its header is not JSON: {error}") from error
    # the format wants an object without so much as a space in front of it
    if not text.startswith("{"):
        raise _bad(path, "CRT-1130", "its header does not begin with '{', as an object does")
    if twice:
        raise _bad(path, "CRT-1147", f"{twice[0]!r} occurs twice in its header")
    metadata = _metadata(table.pop("__metadata__", None), path)
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    entries: dict[str, Entry] = {}
    for name, fields in table.items():
        if not name.isprintable() and _has_surrogate(name):
            raise _bad(path, "CRT-1131", f"the name {name!r} is not valid Unicode")
        dtype, shape, start, end = _fields(name, fields, path)
        bits = ITEM_BITS.get(dtype)
        if bits is None:
            known = ", ".join(ITEM_BITS)
            text = f"tensor {name!r} has the unknown dtype {dtype!r} (known: {known})"
            raise _bad(path, "CRT-1145", text)
        # equal shapes share one tuple: there are a hundred thousand tensors and a dozen shapes
        shape = shapes.setdefault(shape, shape)
        size = end - start
        if size * 8 != math.prod(shape) * bits:
            need = math.prod(shape) * bits // 8
            text = (
                f"tensor {name!r} of {dtype} {list(shape)} needs {need} bytes but "
                f"data_offsets [{start}, {end}] hold {size}"
            )
            raise _bad(path, "CRT-1146", text)
        entries[name] = Entry(dtype, shape, start, size)
    _refuse_overlaps(entries, path)
    return Header(entries, metadata)


def data_bytes(entries: Mapping[str, Entry]) -> tuple[int, str]:
    """Return the bytes of data that a header describes, and the tensor at their end."""
    last = max(entries.items(), key=lambda item: item[1].start + item[1].nbytes, default=None)
    return (0, "") if last is None else (last[1].start + last[1].nbytes, last[0])


def _fields(name: str, fields: Any, path: Path) -> tuple[str, tuple[int, ...], int, int]:
    """Return (dtype, shape, first byte, byte behind the last) of one entry."""
    try:
        dtype, shape = fields["dtype"], fields["shape"]
        start, end = fields["data_offsets"]
        numbers = (*shape, start, end)
    except (TypeError, KeyError, ValueError, IndexError) as error:
        text = f"tensor {name!r} has no usable dtype, shape and data_offsets: {error!r}"
        raise _bad(path, "CRT-1144", text) from error
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise _bad(path, "CRT-1132", f"tensor {name!r} has a dtype or shape of the wrong type")
    if len(shape) > MAX_RANK:
        text = f"tensor {name!r} has {len(shape)} dimensions; at most {MAX_RANK} are read"
        raise _bad(path, "CRT-1133", text)
    for number in numbers:
        # bool is an int to isinstance, and numbers past 2^63 address no file
        if type(number) is not int or not 0 <= number < 1 << 63:
            text = f"tensor {name!r} has a size or offset that is not a whole number from 0 on"
            raise _bad(path, "CRT-1134", text)
    # a zero hides how far the other sizes go, and no array has such strides
    if math.prod(n for n in shape if n) >= 1 << 62:
        raise _bad(path, "CRT-1136", f"tensor {name!r} {shape} is larger than any file")
    return dtype, tuple(shape), start, end


def _refuse_overlaps(entries: Mapping[str, Entry], path: Path) -> None:
    """The format packs tensors without holes, so any gap or overlap is damage."""
    end, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != end:
            where = f"tensor {before!r}" if before else "the start of the data"
            at = f"tensor {name!r} starts at data byte {entry.start} and"
            if entry.start < end:
                raise _bad(path, "CRT-1137", f"{at} overlaps {where}, which ends at {end}")
            text = f"{at} leaves a hole behind {where}, which ends at {end}"
            raise _bad(path, "CRT-1138", text)
        end, before = entry.start + entry.nbytes, name


def _object(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    """Return a JSON object; a plain reader silently keeps the last of two equal names."""
    out = dict(pairs)
    if len(out) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice += [name for name, count in counts.items() if count > 1]
    return out


def _metadata(metadata: Any, path: Path) -> dict[str, str]:
    """Return the metadata, empty where there is none; the format allows only strings."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(path, "CRT-1135", "__metadata__ is not an object of strings")
    return metadata


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _bad(path: Path, code: str, text: str) -> BadCheckpoint:
    return BadCheckpoint(
        what=f"{path.name} is not a sound safetensors file",
        evidence=f"{path}: {text}",
        fix="download the file again, or write it again with the safetensors package",
        code=code,
    )
