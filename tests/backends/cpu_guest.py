"""A cpu device whose generated code is that of another architecture, run by an emulator.

The guest is one process under qemu-user. It links each unit as a shared object and runs steps on a
file that both sides have mapped. Before a step all that its arguments point at is copied there, and
64-bit numbers of its tables that are addresses of this process become addresses of the guest;
afterwards everything is copied back. So kernels are bound, prepared and judged here as usual.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.jit import build, jit_kernels, kernel, pack, team
from clover_rt_cpu.jit.isa import Isa, make
from clover_rt_cpu.jit.kernel import Jit
from clover_rt_cpu.jit.team import NativeStep

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
SOURCE = Path(__file__).with_name("cpu_guest.c")
BYTES = 1 << 30
STATE_BYTES = 4096
LONGEST_S = 120
THREADS = 2
Array = np.ndarray


def missing() -> str:
    """Return what the guest lacks on this machine, or ""."""
    absent = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if not Path(LIBRARIES, "lib").is_dir():
        absent.append(f"{LIBRARIES}/lib (libc6-dev-arm64-cross)")
    return f"not installed: {', '.join(absent)}" if absent else ""


class Guest:
    """The process, in place of a library and its threads."""

    def __init__(self, folder: Path, isa_name: str) -> None:
        self.count = THREADS
        self.folder = folder
        self.isa = make(isa_name, host=False)
        self.machine = shared_machine(self.isa)
        self.units: dict[str, Path] = {}
        self.steps = 0
        program, memory = folder / "guest", folder / "memory"
        with memory.open("wb") as file:
            file.truncate(BYTES)
        compile_with("-O1", "-o", str(program), str(SOURCE), "-lpthread", "-ldl")
        with memory.open("r+b") as file:
            self.memory = np.frombuffer(mmap.mmap(file.fileno(), BYTES), np.uint8)
        command = [EMULATOR, "-L", LIBRARIES, str(program), str(memory), str(BYTES)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._heard = b""
        self.base = self._answer()
        # both sides have it mapped; what was written is not to outlive them
        memory.unlink()
        self.functions = {
            word: self._answer()
            for word in (team.YIELD, team.LOCK, team.UNLOCK, team.WAIT, team.WAKE)
        }
        self.entries = [self.function("team", n, team._emit) for n in ("lead", "help", "stop")]

    def function(self, unit: str, name: str, emit: build.Emit) -> int:
        """Return the guest's address of a function, as `Library.function` does."""
        if unit not in self.units:
            path = self.folder / f"{len(self.units)}.o"
            path.write_bytes(build.generate(self.machine, unit, emit))
            self.units[unit] = path.with_suffix(".so")
            compile_with("-shared", "-o", str(self.units[unit]), str(path))
        found = self._ask(f"find {self.units[unit]} {name}")
        assert found, f"{name} of {unit} is not there"
        return found

    def run(self, step: NativeStep) -> None:
        """Run a step in the guest, on copies of all memory that it points at."""
        roots: dict[int, Array] = {}
        collect([step.table, step.kept], roots)
        starts = np.array(sorted(roots), np.int64)
        ends = starts + [roots[a].nbytes for a in starts.tolist()]
        homes, top = [], STATE_BYTES
        for address in starts.tolist():
            # as far from a multiple of 64 as on this side
            homes.append(-(-top // 64) * 64 + address % 64)
            top = homes[-1] + roots[address].nbytes
        assert top <= BYTES
        places = np.array(homes, np.int64)
        for address, home in zip(starts.tolist(), homes, strict=True):
            root = roots[address]
            if root.dtype == np.int64:
                root = self._translated(root, starts, ends, places)
            self.memory[home : home + root.nbytes] = root.reshape(-1).view(np.uint8)
        self._start_state(int(self._translated(step.table.ctypes.data, starts, ends, places)), step)
        entries = " ".join(map(str, self.entries))
        self._ask(f"run {entries} {self.base} {self.count}")
        for address, home in zip(starts.tolist(), homes, strict=True):
            root = roots[address]
            if root.dtype != np.int64 and root.flags.writeable:
                root.reshape(-1).view(np.uint8)[:] = self.memory[home : home + root.nbytes]
        self.steps += 1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _translated(self, numbers: Any, starts: Array, ends: Array, places: Array) -> Array:
        """Return 64-bit numbers, those that are addresses here as the guest's."""
        numbers = np.asarray(numbers, np.int64)
        at = np.searchsorted(starts, numbers, side="right") - 1
        inside = (at >= 0) & (numbers < ends[at])
        return np.where(inside, numbers - starts[at] + places[at] + self.base, numbers)

    def _start_state(self, table: int, step: NativeStep) -> None:
        state = self.memory[:STATE_BYTES].view(np.int64)
        state[:] = 0
        state[team.TABLE], state[team.LENGTH] = table, len(step.table)
        for word, address in self.functions.items():
            state[word] = address
        # zeros are a mutex and a condition in their first state
        state[team.MUTEX] = self.base + 8 * team.WORDS
        state[team.CONDITION] = self.base + 8 * team.WORDS + team.OBJECT_BYTES

    def _ask(self, command: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        return self._answer()

    def _answer(self) -> int:
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        while b"\n" not in self._heard:
            ready, _, _ = select.select([out], [], [], LONGEST_S)
            assert ready, "the guest does not answer"
            heard = os.read(out, 4096)
            assert heard, f"the guest ended with {self.process.wait()}"
            self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        return int(line)


class GuestStep(NativeStep):
    """A step that a guest is given whole: what it keeps is what is copied."""

    def __call__(self) -> None:
        self.team.run(self if isinstance(self.team, Guest) else self.table)  # type: ignore[arg-type]


def collect(thing: Any, roots: dict[int, Array]) -> None:
    """Find the arrays in what a step keeps, each as the memory that it is a part of."""
    if isinstance(thing, np.ndarray):
        while isinstance(thing.base, np.ndarray):
            thing = thing.base
        if thing.nbytes:
            roots[thing.ctypes.data] = thing
    elif isinstance(thing, Jit):
        collect(thing._tiles, roots)
    elif isinstance(thing, dict):
        collect(list(thing.values()), roots)
    elif isinstance(thing, list | tuple):
        for item in thing:
            collect(item, roots)
    elif dataclasses.is_dataclass(thing):
        collect([getattr(thing, f.name) for f in dataclasses.fields(thing)], roots)


def open_guest(folder: Path, isa_name: str, patch: pytest.MonkeyPatch) -> tuple[CpuDevice, Guest]:
    """Return a device with generated kernels alone, and the guest that runs them."""
    guest = Guest(folder, isa_name)
    jit = Jit.__new__(Jit)
    jit.isa, jit._tiles = guest.isa, {}
    jit.library = jit.team = guest  # type: ignore[assignment]
    device = CpuDevice(workers=1, isa="numpy")
    device.kernels = jit_kernels(jit)
    for module in (kernel, pack):
        patch.setattr(module, "NativeStep", GuestStep)
    return device, guest


def shared_machine(isa: Isa) -> llvm.TargetMachine:
    """Return the code generator for units that are linked and not loaded as they are."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(isa.triple).create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=2, reloc="pic", codemodel="small"
    )


def compile_with(*words: str) -> None:
    done = subprocess.run([COMPILER, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
