"""From descriptions to native functions: code generation, and a cache of its results on disk.

The cache lies in `clover-rt/cpu` of the user's cache folder (XDG_CACHE_HOME). A file's name is a
hash of the sources of this package, the instruction set, and the version of llvmlite; its content
begins with a hash of the rest. A cache that cannot be read or written is done without.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from clover_rt.cache import cache_folder, read_checked, write_checked
from clover_rt_cpu.jit.isa import Isa

Emit = Callable[[ir.Module], None]


class Library:
    """Native functions for one instruction set, made as they are asked for."""

    def __init__(self, isa: Isa, cache: Path | None = None) -> None:
        self.isa = isa
        self.cache = cache_folder("cpu") if cache is None else cache
        self.machine = target_machine(isa)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self.machine)
        self._loaded: set[str] = set()
        self._lock = threading.Lock()

    def function(self, unit: str, name: str, emit: Emit) -> int:
        """Return the address of a function of a unit; `emit` writes the whole unit."""
        with self._lock:
            if unit not in self._loaded:
                data = self._object(unit, emit)
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
                self._engine.finalize_object()
                self._loaded.add(unit)
            return int(self._engine.get_function_address(name))

    def _object(self, unit: str, emit: Emit) -> bytes:
        told = (sources(), llvmlite.__version__, self.isa, unit)
        path = self.cache / (hashlib.sha256(repr(told).encode()).hexdigest() + ".o")
        found = read_checked(path)
        if found is None:
            found = generate(self.machine, unit, emit)
            write_checked(path, found)
        return found


def generate(machine: llvm.TargetMachine, unit: str, emit: Emit) -> bytes:
    """Return the object code of a unit."""
    data: bytes = machine.emit_object(optimised(machine, unit, emit))
    return data


def listing(machine: llvm.TargetMachine, unit: str, emit: Emit) -> str:
    """Return the assembly of a unit."""
    text: str = machine.emit_assembly(optimised(machine, unit, emit))
    return text


def optimised(machine: llvm.TargetMachine, unit: str, emit: Emit) -> llvm.ModuleRef:
    module = ir.Module(name=unit)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    emit(module)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    # the kernels are written as they are to run: loops are not to be unrolled or vectorised again
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


def target_machine(isa: Isa) -> llvm.TargetMachine:
    if isa.triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(isa.triple)
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=2, codemodel="jitdefault"
    )


@lru_cache(maxsize=1)
def sources() -> str:
    """Return a hash of the files that descriptions are made of."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
