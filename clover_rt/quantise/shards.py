"""The files of a result: which tensors lie where, and their headers. docs/formats.md tells more."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from clover_rt.quantise.rules import Choice
from clover_rt.spec import Format
from clover_rt.weights.folder import SINGLE
from clover_rt.weights.packed import CODES, FORMAT, SCALE, VERSION

SHARD_BYTES = 2_000_000_000
"""What a shard holds at most, unless one tensor is larger; so much is done again on a resume."""

NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Shard:
    """One file of the result.

    group  values that share a scale in 4-bit tensors
    """

    name: str
    choices: tuple[Choice, ...]
    group: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(choice.nbytes for choice in self.choices)

    @property
    def entries(self) -> dict[str, tuple[str, tuple[int, ...], int]]:
        """Tensor name -> (dtype, shape, bytes), in the order of the file."""
        return {name: entry for choice in self.choices for name, entry in _entries(choice)}

    @cached_property
    def header(self) -> bytes:
        """The bytes of the file before its data, with zeros for the digest of the source."""
        told = {
            "format": FORMAT,
            "format_version": VERSION,
            "group": str(self.group),
            "source_sha256": NO_DIGEST,
            "tool": tool(),
        }
        table: dict[str, Any] = {"__metadata__": told}
        end = 0
        for name, (dtype, shape, nbytes) in self.entries.items():
            offsets = [end, end + nbytes]
            table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
            end += nbytes
        text = json.dumps(table, separators=(",", ":")).encode()
        # data begins at a multiple of eight bytes
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    @property
    def digest_at(self) -> int:
        """Where the digest of the source lies in the file."""
        return self.header.index(NO_DIGEST.encode())

    def is_whole(self, path: Path) -> bool:
        """Is this the file of the shard, by its size and all of its header but the digest?"""
        if not path.is_file() or path.stat().st_size != len(self.header) + self.nbytes:
            return False
        with path.open("rb") as file:
            found = file.read(len(self.header))
        before, after = self.digest_at, self.digest_at + len(NO_DIGEST)
        return (found[:before], found[after:]) == (self.header[:before], self.header[after:])


def tool() -> str:
    """Return the name and version of what writes the files."""
    return f"clover-rt {metadata.version('clover-rt')}"


def cut(choices: Sequence[Choice], group: int, shard_bytes: int) -> list[Shard]:
    """Return the tensors in files of about as many bytes, in order; one file has no number."""
    parts: list[list[Choice]] = [[]]
    held = 0
    for choice in choices:
        if parts[-1] and held + choice.nbytes > shard_bytes:
            parts.append([])
            held = 0
        parts[-1].append(choice)
        held += choice.nbytes
    if len(parts) == 1:
        return [Shard(SINGLE, tuple(parts[0]), group)]
    count = len(parts)
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    return [Shard(name, tuple(part), group) for name, part in zip(names, parts, strict=True)]


def index(shards: Sequence[Shard]) -> str:
    """Return the index of several files as JSON."""
    weight_map = {name: shard.name for shard in shards for name in shard.entries}
    total = sum(shard.nbytes for shard in shards)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1)


def _entries(choice: Choice) -> list[tuple[str, tuple[str, tuple[int, ...], int]]]:
    view, shape = choice.view, choice.view.shape
    if choice.format is None:
        return [(choice.name, (view.dtype, shape, view.nbytes))]
    lead, k = shape[:-1], shape[-1]
    scales = 2 * (choice.parameters // choice.group)
    dtype, columns = ("U8", k // 2) if choice.format is Format.Q4 else ("I8", k)
    return [
        (choice.name + CODES, (dtype, (*lead, columns), choice.nbytes - scales)),
        (choice.name + SCALE, ("F16", (*lead, k // choice.group), scales)),
    ]
