"""Instruction sets that kernels are generated for, and what differs between them.

Everything is written with vectors of 16 numbers; only the dot product of bytes is not the same
everywhere, how many rows of activations fit the registers, and whether many rows have a unit of
their own.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm

from clover_rt.errors import BackendUnavailable
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.values import BF16, F32, I16, I32, Value, vec

VARIABLE = "CLOVER_RT_CPU_ISA"
# numbers of the x86-64 Linux kernel: the call, its request, and what is requested
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18


@dataclass(frozen=True)
class Isa:
    """One instruction set.

    triple, cpu, features  what the code generator is told; an empty triple is the host's
    tile     rows of activations that are multiplied with one reading of quantised weights
    flips    8-bit codes are stored with 128 added, for a dot product of unsigned with signed bytes
    pairs    there is a dot product of pairs of bfloat16
    is_wide  vectors have 512 bits
    matrices many rows, and attention in bfloat16, are multiplied by AMX
    """

    name: str
    cpu: str
    features: str
    tile: int
    triple: str = ""
    flips: bool = False
    pairs: bool = False
    is_wide: bool = False
    matrices: bool = False

    @property
    def tiles(self) -> tuple[int, ...]:
        """Return the row counts that kernels are made for, rising from 1."""
        return tuple(range(1, self.tile + 1))

    def dot(self, code: Code, total: Value, codes: Value, x: Value, signed: bool) -> Value:
        """Add to 16 sums the products of 4 bytes each: codes [64] times x [64] signed.

        signed  codes are q8 (stored with 128 added where `flips`); else they lie in 0 .. 15
        """
        if self.is_wide:
            name = "llvm.x86.avx512.vpdpbusd.512"
            return code.target(name, vec(I32), total, codes, x)
        parts = 2 if self.name == "avx2" else 4
        width = 64 // parts
        sums = []
        for i in range(parts):
            lanes = list(range(width * i, width * (i + 1)))
            a, b = codes.pick(lanes), x.pick(lanes)
            part = total.pick([n // 4 for n in lanes[::4]])
            sums.append(self._narrow(code, part, a, b, signed))
        while len(sums) > 1:
            half = sums[0].lanes
            sums = [sums[i].pick(range(2 * half), sums[i + 1]) for i in range(0, len(sums), 2)]
        return sums[0]

    def nibbles(self, code: Code, x: Value, less: int) -> Value:
        """Return the low four bits of 16 numbers, less a number, as float32."""
        if not self.is_wide:
            return ((x & 15) - less).to(F32)
        table = code.vector(F32, [float(n - less) for n in range(16)])
        return code.target("llvm.x86.avx512.permvar.sf.512", table.type, table, x)

    def dot_pairs(self, code: Code, total: Value, a: Value, b: Value) -> Value:
        """Add to 16 sums the products of 2 bfloat16 numbers each, which lie in 32-bit numbers."""
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return code.target(name, total.type, total, a.bits(BF16), b.bits(BF16))

    def _narrow(self, code: Code, total: Value, a: Value, b: Value, signed: bool) -> Value:
        if self.name == "neon":
            return code.target("llvm.aarch64.neon.sdot.v4i32.v16i8", vec(I32, 4), total, a, b)
        if signed:
            # the instruction wants unsigned times signed: move the sign to the other factor
            b = code.select(a < 0, 0 - b, b)
            a = code.intrinsic_with_flag("abs", a)
        pairs = code.target("llvm.x86.avx2.pmadd.ub.sw", vec(I16, 16), a, b)
        ones = code.const(vec(I16, 16), 1)
        return total + code.target("llvm.x86.avx2.pmadd.wd", vec(I32, 8), pairs, ones)


AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "fma", "f16c")
AVX2 = ("avx2", "fma", "f16c")
AMX = (*AVX512, "avx512bf16", "amx-tile", "amx-int8", "amx-bf16")
NEON = ("neon", "dotprod")


def make(name: str, *, host: bool = True) -> Isa:
    """Return an instruction set by name: amx, avx512, avx2, neon; for the host or for any such."""
    cpu = llvm.get_host_cpu_name() if host else ""
    if name in ("avx512", "amx"):
        needs = AMX if name == "amx" else AVX512
        features = llvm.get_host_cpu_features().flatten() if host else _flags(needs)
        return Isa(
            name,
            cpu or "x86-64-v4",
            features,
            8,
            flips=True,
            pairs="+avx512bf16" in features,
            is_wide=True,
            matrices=name == "amx",
        )
    if name == "avx2":
        return Isa("avx2", "x86-64-v3", _flags(AVX2), 2)
    features = llvm.get_host_cpu_features().flatten() if host else _flags(NEON)
    triple = "" if host else "aarch64-unknown-linux-gnu"
    return Isa("neon", cpu or "generic", features, 4, triple)


def supported(features: Mapping[str, bool] | None = None) -> list[str]:
    """Return the names of the instruction sets that this processor has, best first."""
    if features is None:
        features = llvm.get_host_cpu_features()
    machine = platform.machine().lower()
    # the threads wait by means of pthread, which Windows has not
    if platform.system() == "Windows":
        known = {}
    elif machine in ("x86_64", "amd64"):
        known = {"amx": AMX, "avx512": AVX512, "avx2": AVX2}
    elif machine in ("aarch64", "arm64"):
        known = {"neon": NEON}
    else:
        known = {}
    found = [name for name, needs in known.items() if all(features.get(f) for f in needs)]
    return [name for name in found if name != "amx" or may_use_tiles()]


@lru_cache(maxsize=1)
def may_use_tiles() -> bool:
    """Ask the system for the registers of AMX, for all threads of this process."""
    if platform.system() != "Linux":
        return False
    answer: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA)
    return answer == 0


def choose(name: str | None = None) -> Isa | None:
    """Return the instruction set asked for here or in CLOVER_RT_CPU_ISA; None for numpy.

    Where none is asked for it is the best one that the processor has. CRT-3016 where one is asked
    for that it does not have.
    """
    have = supported()
    wanted = name or os.environ.get(VARIABLE) or next(iter(have), "numpy")
    if wanted == "numpy":
        return None
    if wanted not in have:
        raise BackendUnavailable(
            what=f"the cpu kernels were to be generated for {wanted!r} ({VARIABLE})",
            evidence=f"this processor has {', '.join(have) or 'none of amx, avx512, avx2, neon'}",
            fix=f"unset {VARIABLE}, or set it to one of {', '.join([*have, 'numpy'])}",
            code="CRT-3016",
        )
    return make(wanted)


def _flags(names: tuple[str, ...]) -> str:
    return ",".join("+" + name for name in names)
