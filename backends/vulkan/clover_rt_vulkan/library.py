"""The library of shaders: SPIR-V that ships with the package, and an index of what each takes.

The index is written by `shaders/build.py` out of the SPIR-V itself. Code is handed out only where
its hash is the index's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover_rt.errors import BackendUnavailable

SPIRV = Path(__file__).parent / "spirv"
SCHEMA = 1
REINSTALL = 'install the package anew: pip install --force-reinstall "clover-rt[vulkan]"'


@dataclass(frozen=True)
class Shader:
    """What the index says of one shader.

    buffers    names in the order of their bindings
    written    those of them that it writes
    push       (name, "int", "uint" or "float") in order, 4 bytes each
    constants  ids of the specialisation constants by name
    requires   features that a device must have
    """

    name: str
    sha256: str
    buffers: tuple[str, ...]
    written: frozenset[str]
    push: tuple[tuple[str, str], ...]
    constants: Mapping[str, int]
    requires: frozenset[str]


class Library:
    """The shaders of a folder; raises BackendUnavailable where it is not as it was built.

    CRT-3530 the index, or the code of a shader, is missing or cannot be read; CRT-3531 it has
    been changed.
    """

    def __init__(self, folder: Path = SPIRV) -> None:
        self.folder = folder
        told = self._index()
        self.shaders = {name: _shader(name, entry) for name, entry in told["shaders"].items()}
        self._code: dict[str, bytes] = {}

    def code(self, name: str) -> bytes:
        """Return a shader's SPIR-V."""
        if name not in self._code:
            path = self.folder / f"{name}.spv"
            data = self._read(path)
            found, want = hashlib.sha256(data).hexdigest(), self.shaders[name].sha256
            if found != want:
                raise BackendUnavailable(
                    what=f"shader {name} of the vulkan backend was to be used",
                    evidence=f"{path} has SHA-256 {found}, the index says {want}",
                    fix=REINSTALL,
                    code="CRT-3531",
                )
            self._code[name] = data
        return self._code[name]

    def _index(self) -> dict[str, Any]:
        path = self.folder / "index.json"
        data = self._read(path)
        try:
            told: dict[str, Any] = json.loads(data)
            schema = told["schema"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(path, f"{type(error).__name__}: {error}") from error
        if schema != SCHEMA:
            raise self._unreadable(path, f"schema {schema}, and this version reads {SCHEMA}")
        return told

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._unreadable(path, str(error)) from error

    def _unreadable(self, path: Path, why: str) -> BackendUnavailable:
        return BackendUnavailable(
            what=f"{path.name} of the vulkan backend was to be read",
            evidence=f"{path}: {why}",
            fix=REINSTALL,
            code="CRT-3530",
        )


def _shader(name: str, entry: Mapping[str, Any]) -> Shader:
    return Shader(
        name,
        entry["sha256"],
        tuple(entry["buffers"]),
        frozenset(entry["writes"]),
        tuple((n, kind) for n, kind in entry["push"]),
        entry["constants"],
        frozenset(entry["requires"]),
    )
