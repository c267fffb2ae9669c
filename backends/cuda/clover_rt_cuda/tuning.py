"""Tile sizes for a kind of card, as data; without a table the kernels' own are used.

A card without a table of its own takes one that is compiled for the same limits, see RELATED.

A table is a JSON file named after the arch, such as `sm_90.json`. The user's, in
`clover-rt/tuning` of the configuration folder (XDG_CONFIG_HOME), goes before the one that comes
with this package.

    {"format": 1, "arch": "sm_90", "tiles": {
        "rows": [{"most_rows": 32, "precision": "fast", "set": {"BN": 128, "num_warps": 8}}]}}

Each kind of tile has a list; its first entry that holds is used. most_rows (capacities up to it),
precision and weights (the format of the operation's largest weight) are conditions, and may be left
out.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from clover_rt.errors import BadInput
from clover_rt.ops import OPS
from clover_rt.spec import Format, Precision, Signature

E = TypeVar("E", bound=Enum)
FORMAT = 1
PACKAGED = Path(__file__).parent / "tables"
RELATED: Mapping[str, str] = {
    # as sm_120, these have 99 KB of shared memory a block, and `mma` but not `wgmma`
    "sm_86": "sm_120",
    "sm_89": "sm_120",
    "sm_121": "sm_120",
    # as many registers a wave, and the same matrix instructions
    "gfx1101": "gfx1100",
    "gfx1102": "gfx1100",
    "gfx1103": "gfx1100",
    "gfx1150": "gfx1151",
    "gfx1152": "gfx1151",
    "gfx1153": "gfx1151",
}
"""Whose table is for a card that has none of its own."""
COMPILER = {"num_warps": (1, 32), "num_stages": (1, 8)}
TILES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    # products of one row: rows and columns of the weight
    "row": {"BN": (16, 256), "BK": (32, 1024)},
    # products of several rows: these, and the rows
    "rows": {"BM": (16, 128), "BN": (16, 256), "BK": (32, 256)},
    # products of the pairs of an expert
    "pairs": {"BP": (16, 128), "BN": (16, 256), "BK": (32, 256)},
    # the head: wanted rows and ids
    "head": {"BW": (16, 128), "BV": (64, 512), "BK": (32, 256)},
    # attention of few rows: queries (rows by query heads of a KV head), keys, and columns of a key
    # at a time
    "attend": {"BQ": (16, 256), "BN": (16, 128), "BX": (16, 256)},
    # attention of previews and of more than 64 rows: the same
    "attend_rows": {"BQ": (16, 256), "BN": (16, 128), "BX": (16, 256)},
}
"""The least and the most of each number, by kind of tile; all are powers of two."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Numbers that replace those of a kernel, and when."""

    numbers: Mapping[str, int]
    most_rows: int | None = None
    precision: Precision | None = None
    weights: Format | None = None

    def holds(self, sig: Signature) -> bool:
        return (
            (self.most_rows is None or sig["T"] <= self.most_rows)
            and self.precision in (None, sig.precision)
            and self.weights in (None, format_of(sig))
        )


@dataclass(frozen=True)
class Tuning:
    """The table of an arch; `source` is its file, None where there is none."""

    source: Path | None = None
    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)

    @staticmethod
    def of(arch: str) -> Tuning:
        """Return the table of an arch, or of the one that it is related to.

        BadInput (CRT-1095 to 1097) says what is wrong in a file.
        """
        names = [name for name in (arch, RELATED.get(arch)) if name is not None]
        for name, folder in product(names, (user_folder(), PACKAGED)):
            path = folder / f"{name}.json"
            if path.is_file():
                return read(path, name)
        return Tuning()

    def tile(self, kind: str, sig: Signature, own: Mapping[str, int]) -> dict[str, int]:
        """Return a tile: a kernel's own, with what the table says of it."""
        entries = self.entries.get(kind, ())
        numbers = next((entry.numbers for entry in entries if entry.holds(sig)), {})
        return {**own, **numbers}


def format_of(sig: Signature) -> Format | None:
    """Return the format of the weight with most numbers; None where there is no weight."""
    spec, axes = OPS[sig.op], dict(sig.axes)
    found = [(math.prod(spec.shape(name, axes)), fmt) for name, fmt, _ in sig.formats]
    return max(found, key=lambda item: item[0], default=(0, None))[1]


def user_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path("~/.config").expanduser()
    return root / "clover-rt" / "tuning"


def read(path: Path, arch: str) -> Tuning:
    """Return the table in a file."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(
            what=f"the tuning table {path} cannot be read",
            evidence=str(error),
            fix="correct or delete the file: without one, the kernels' own tile sizes are used",
            code="CRT-1095",
        ) from error
    head = {"format": FORMAT, "arch": arch}
    found = {name: told.get(name) for name in head} if isinstance(told, dict) else told
    if found != head:
        raise BadInput(
            what=f"the tuning table {path} is not one of format {FORMAT} for {arch}",
            evidence=f"it says {found!r}",
            fix=f"make a table for {arch}, or delete the file",
            code="CRT-1096",
        )
    return _Reader(path).tuning(told)


class _Reader:
    """Reads the content of a file and says which value of it is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tuning(self, told: Mapping[str, Any]) -> Tuning:
        tiles = self._names("tiles", told.get("tiles", {}), TILES)
        return Tuning(self.path, {kind: self._entries(kind, tiles[kind]) for kind in tiles})

    def _entries(self, kind: str, told: Any) -> tuple[Entry, ...]:
        if not isinstance(told, list):
            raise self._wrong(f"tiles.{kind}", told, "a list")
        bounds, out = {**TILES[kind], **COMPILER}, []
        for i, entry in enumerate(told):
            where = f"tiles.{kind}[{i}]"
            self._names(where, entry, ("most_rows", "precision", "weights", "set"))
            numbers = self._names(f"{where}.set", entry.get("set", {}), bounds)
            for name, value in numbers.items():
                self._number(f"{where}.set.{name}", value, *bounds[name])
            rows = entry.get("most_rows")
            if rows is not None:
                self._number(f"{where}.most_rows", rows, 1, 1 << 16)
            precision = self._one_of(where, entry, "precision", Precision)
            weights = self._one_of(where, entry, "weights", Format)
            out.append(Entry(numbers, rows, precision, weights))
        return tuple(out)

    def _one_of(self, where: str, entry: Mapping[str, Any], name: str, kind: type[E]) -> E | None:
        """Return a condition that names a member of an enumeration; None where it is left out."""
        told = entry.get(name)
        if told is None:
            return None
        names = [member.value for member in kind]
        if told not in names:
            raise self._wrong(f"{where}.{name}", told, " or ".join(names))
        return kind(told)

    def _names(self, where: str, told: Any, known: Collection[str]) -> Mapping[str, Any]:
        """Return an object whose names are all known."""
        if not isinstance(told, dict):
            raise self._wrong(where, told, "an object")
        for name in told:
            if name not in known:
                raise self._wrong(where, name, f"one of {', '.join(known)}")
        return told

    def _number(self, where: str, value: Any, least: int, most: int) -> None:
        if type(value) is not int or not least <= value <= most or value & (value - 1):
            raise self._wrong(where, value, f"a power of two from {least} to {most}")

    def _wrong(self, where: str, found: Any, wanted: str) -> BadInput:
        return BadInput(
            what=f"{where} of the tuning table {self.path} cannot be used",
            evidence=f"it has {found!r} where there may be {wanted}",
            fix="correct it, or delete the file",
            code="CRT-1097",
        )
