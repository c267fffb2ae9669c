"""The header of a safetensors file: eight bytes of length, a JSON object, then the data.

Written here because a release in per-expert layout has about a hundred thousand tensors, and
because a damaged file should say which tensor is damaged and how.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover_rt.errors import BadCheckpoint

MAX_HEADER_BYTES = 100_000_000
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


def parse_header(blob: bytes, path: Path) -> dict[str, Entry]:
    """Return name -> entry of a header's JSON; `start` counts from the first data byte.

    Raises BadCheckpoint: CRT-1143 not a JSON object, CRT-1144 a malformed entry, CRT-1145 an
    unknown dtype, CRT-1146 byte ranges that overlap, leave holes or do not fit shape and dtype,
    CRT-1147 a name that occurs twice.
    """
    try:
        table = json.loads(blob)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "CRT-1143", f"its header is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise _bad(path, "CRT-1143", "its header is not a JSON object")
    _refuse_duplicates(blob, table, path)
    table.pop("__metadata__", None)
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    entries: dict[str, Entry] = {}
    for name, fields in table.items():
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
    return entries


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
        raise _bad(path, "CRT-1144", f"tensor {name!r} has a dtype or shape of the wrong type")
    for number in numbers:
        # bool is an int to isinstance, and numbers past 2^63 address no file
        if type(number) is not int or not 0 <= number < 1 << 63:
            text = f"tensor {name!r} has a size or offset that is not a whole number from 0 on"
            raise _bad(path, "CRT-1144", text)
    return dtype, tuple(shape), start, end


def _refuse_overlaps(entries: Mapping[str, Entry], path: Path) -> None:
    """The format packs tensors without holes, so any gap or overlap is damage."""
    end, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != end:
            verb = "overlaps" if entry.start < end else "leaves a hole behind"
            where = f"tensor {before!r}" if before else "the start of the data"
            text = (
                f"tensor {name!r} starts at data byte {entry.start} and {verb} {where}, "
                f"which ends at {end}"
            )
            raise _bad(path, "CRT-1146", text)
        end, before = entry.start + entry.nbytes, name


def _refuse_duplicates(blob: bytes, table: Mapping[str, Any], path: Path) -> None:
    """Raise where a name occurs twice: a plain JSON reader silently keeps the last."""
    if blob.count(b'"data_offsets"') == len(table) - ("__metadata__" in table):
        return
    for name in _repeated(blob):
        raise _bad(path, "CRT-1147", f"tensor {name!r} occurs twice in its header")


def _repeated(blob: bytes) -> Iterator[str]:
    """Yield the names that occur twice in any one object of a JSON text."""
    twice: list[str] = []

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                twice.append(key)
            seen.add(key)
        return dict(pairs)

    json.loads(blob, object_pairs_hook=hook)
    yield from twice


def _bad(path: Path, code: str, text: str) -> BadCheckpoint:
    return BadCheckpoint(
        what=f"{path.name} is not a sound safetensors file",
        evidence=f"{path}: {text}",
        fix="download the file again, or write it again with the safetensors package",
        code=code,
    )
