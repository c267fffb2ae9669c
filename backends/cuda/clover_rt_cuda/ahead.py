"""Compile the kernels of an operation for a target that is not here, and say what they take.

No card, driver or toolkit is needed: triton brings its compilers. A `Recorder` is bound as a card
is, but its tensors have no memory, so shapes of any size cost nothing, and every constant is the
one that `bind` picks on a card. `python backends/cuda/ahead_table.py` does so with the plan of the
release.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from clover_rt.backend import DeviceInfo, Tensor
from clover_rt.ops import OPS
from clover_rt.spec import (
    DType,
    Format,
    HostWeight,
    Precision,
    Role,
    Signature,
    StepLayout,
    TableClass,
    Weight,
)
from clover_rt_cuda.device import CudaDevice, TorchBuffer
from clover_rt_cuda.launch import ALIGNED, FUSED, NARROW_BYTES, OPTIONS, CudaStep, Launch

TARGETS: Mapping[str, int] = {
    "sm_80": 163 << 10,
    "sm_90": 227 << 10,
    "sm_120": 99 << 10,
    "gfx1100": 64 << 10,
    "gfx1151": 64 << 10,
    "gfx1200": 64 << 10,
    "gfx1201": 64 << 10,
}
"""Bytes of shared memory that a program may use: the vendors' limits of a block or work group."""
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
}
META = torch.device("meta")
# an instruction of each assembly, and those of the matrix units
INSTRUCTION = {
    "hip": re.compile(r"^\t[a-z]\w+", re.MULTILINE),
    "cuda": re.compile(r"^\t(?:@!?%\w+ )?[a-z][\w.]*.*;", re.MULTILINE),
}
MATRIX = {"hip": re.compile(r"^\tv_wmma", re.MULTILINE), "cuda": re.compile(r"\b(?:wg)?mma\.")}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a kernel takes on a target: bytes of shared memory, registers a thread, spilt words.

    instructions, matrix  how many there are in the assembly, and how many of them are products of a
                          matrix unit
    code                  the assembly: of the card for hip, PTX for cuda
    """

    name: str
    target: str
    shared: int
    registers: int
    spills: int
    instructions: int
    matrix: int
    code: str


class Recorder(CudaDevice):
    """A card without memory: its steps are bound, looked at, and not run.

    arch  whose tuning table is used; without one, none is
    """

    def __init__(self, arch: str = "recorder") -> None:
        super().__init__(DeviceInfo("recorder", "recorder", is_software=True))
        self.torch = META
        self.arch = arch

    def fill(self, target: torch.Tensor, source: Any) -> None:
        return None


def launches(sig: Signature, arch: str = "recorder") -> list[Launch]:
    """Return the launches of an operation with long prefixes, bound as on a card."""
    return list(step_of(sig, arch).launches(sys.maxsize))


def step_of(sig: Signature, arch: str = "recorder") -> CudaStep:
    """Return the step of an operation, bound as on a card of this arch."""
    device, spec = Recorder(arch), OPS[sig.op]
    kernel, axes = device.kernels[sig.op], dict(sig.axes)
    operands = {}
    for o in spec.operands:
        if o.role is Role.PARAMS:
            shape, dtype = (sig.layout.nbytes,), np.dtype(np.uint8)
        elif o.role is Role.WEIGHT or not sig.has(o.name):
            continue
        else:
            shape, dtype = spec.shape(o.name, axes), sig.dtype(o.name)
        operands[o.name] = _tensor(shape, dtype)
    need = kernel.scratch(sig)
    scratch = _tensor((need,), np.dtype(np.uint8)) if need else None
    weights = {
        name: zeros_weight(name, fmt, group, spec.shape(name, axes))
        for name, fmt, group in sig.formats
    }
    step: CudaStep = kernel.bind(sig, operands, kernel.prepare(sig.static(), weights), scratch)
    return step


def programs(steps: Iterable[CudaStep]) -> list[Launch]:
    """Return one launch of each program that these steps take, whatever the prefix."""
    found = {}
    for step in steps:
        for prefix in (*step.bounds, sys.maxsize):
            found.update({launch.program: launch for launch in step.launches(prefix)})
    return list(found.values())


def name_of(launch: Launch) -> str:
    """Return the kernel and everything else that its compiler sees, as text."""
    constants = [f"{k}={v}" for k, v in sorted(launch.meta.items())]
    types = [_spelled(value) for value in launch.args]
    return f"{launch.kernel.__name__}({', '.join(types)}; {', '.join(constants)})"


def target_of(arch: str) -> GPUTarget:
    """Return what triton compiles for: of cuda for `sm_90`, else of hip."""
    kind, _, number = arch.partition("_")
    return GPUTarget("cuda", int(number), 32) if kind == "sm" else GPUTarget("hip", arch, 32)


def lowered(launch: Launch, target: str) -> str:
    """Return a launch as Triton's own code, before any target's compiler sees it."""
    where = target_of(target)
    source, given = _source(launch, where)
    backend = make_backend(where)
    options = backend.parse_options(given)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    return str(source.make_ir(where, options, functions, modules, context))


def compiled(launch: Launch, target: str) -> Compiled:
    """Compile a launch; what triton raises where it does not compile is passed on."""
    where = target_of(target)
    source, options = _source(launch, where)
    found = triton.compile(source, target=where, options=options)
    if where.backend == "hip":
        code = found.asm["amdgcn"]
        registers, spills = _number(code, "vgpr_count"), _number(code, "vgpr_spill_count")
    else:
        code = found.asm["ptx"]
        registers, spills = _cuda_resources(found.asm["cubin"])
    return Compiled(
        launch.kernel.__name__,
        target,
        found.metadata.shared,
        registers,
        spills,
        len(INSTRUCTION[where.backend].findall(code)),
        len(MATRIX[where.backend].findall(code)),
        code,
    )


def signature(
    op: str,
    axes: Mapping[str, int],
    attrs: Mapping[str, Any],
    weights: str,
    precision: Precision,
    table: TableClass = TableClass.PREVIEW,
) -> Signature:
    """Return a signature with every operand given, its weights in one format such as `q4-64`.

    A weight that the format's groups do not divide is bf16, as in a checkpoint.
    """
    spec = OPS[op]
    kind, _, group = weights.partition("-")
    size = int(group or (32 if kind == "q8" else 0))
    kv = "bfloat16" if precision is Precision.FAST else "float32"
    types = {DType.EDGE: "float32", DType.KV: kv}
    dtypes, formats = [], []
    for o in spec.operands:
        if o.role is Role.WEIGHT:
            fits = not size or spec.shape(o.name, axes)[-1] % size == 0
            formats.append((o.name, Format(kind), size) if fits else (o.name, Format.BF16, 0))
        elif o.role is not Role.PARAMS:
            dtypes.append((o.name, types.get(o.dtype, o.dtype.value)))
    return Signature(
        op,
        table,
        precision,
        tuple(sorted(axes.items())),
        tuple(dtypes),
        tuple(formats),
        tuple(sorted(attrs.items())),
        StepLayout(),
    )


def hot(
    rows: int, weights: str, precision: Precision, table: TableClass = TableClass.PREVIEW
) -> Iterator[Signature]:
    """Yield what a pass of the release runs, at its sizes and a capacity of rows.

    A preview has no scan, so the scan of a commit of as many rows follows by itself.
    """

    def of(op: str, attrs: Mapping[str, Any], **axes: int) -> Signature:
        return signature(op, {"T": rows, **axes}, attrs, weights, precision, table)

    eps = {"eps": 1e-6}
    memory = {"G": 16, "H": 32, "K": 128, "V": 128, "slots": 2, "Q": 32}
    yield of("gdn", eps, D=2048, C=8192, J=4, **memory)
    cache = {"r": 32, "P": 131328, "slots": 2, "slot_pages": 512, "pages": 1024}
    yield of("attention", eps, D=2048, H=16, G=2, K=256, **cache)
    experts = {"E": 256, "R": 8, "F": 512, "Fs": 512, "segments": 64}
    yield of("moe", {**eps, "top_p": 0.8}, D=2048, **experts)
    head = {"D": 2048, "vocab": 248320, "slots": 2, "W": min(rows, 512)}
    yield of("confidence_topk", {"top": 1}, top=1, **head)
    if table is TableClass.PREVIEW:
        scan = {"T": rows, **memory}
        yield signature("block_scan", scan, {}, weights, precision, TableClass.COMMIT)


def _source(launch: Launch, target: GPUTarget) -> tuple[ASTSource, dict[str, Any]]:
    """Return a launch as source with types and constants as triton sees them, and its options."""
    kernel, options = launch.kernel, {k: v for k, v in launch.meta.items() if k in OPTIONS}
    options |= FUSED
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    given = dict(zip(kernel.arg_names, launch.args, strict=False)) | dict(launch.meta)
    for i, name in enumerate(kernel.arg_names):
        value = given[name]
        if isinstance(value, torch.Tensor):
            types[name] = TYPES[value.dtype]
            attributes[(i,)] = [["tt.divisibility", ALIGNED]]
            if target.backend == "hip" and value.untyped_storage().nbytes() < NARROW_BYTES:
                attributes[(i,)].append(["tt.pointer_range", 32])
        elif name in launch.meta or value is None or (type(value) is int and value == 1):
            types[name], constants[name] = "constexpr", value
        elif isinstance(value, float):
            types[name] = "fp32"
        else:
            types[name] = "i32"
            if value % ALIGNED == 0:
                attributes[(i,)] = [["tt.divisibility", ALIGNED]]
    return ASTSource(kernel, types, constants, attributes), options


def _spelled(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        wide = value.untyped_storage().nbytes() >= NARROW_BYTES
        return TYPES[value.dtype] + ("w" if wide else "")
    if type(value) is not int:
        return type(value).__name__
    return "1" if value == 1 else "int" + ("*16" if value % ALIGNED == 0 else "")


def _tensor(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return Tensor(TorchBuffer(torch.empty(nbytes, dtype=torch.uint8, device=META)), dtype, shape)


def zeros_weight(name: str, fmt: Format, group: int, shape: tuple[int, ...]) -> HostWeight:
    """Return a weight whose numbers are one zero, seen from everywhere."""

    def zeros(dtype: Any, columns: int) -> Any:
        return np.broadcast_to(np.zeros((), dtype), (*shape[:-1], columns))

    halved = 2 if fmt is Format.Q4 else 1
    codes = zeros(fmt.codes_dtype, shape[-1] // halved)
    scale = zeros(np.float16, shape[-1] // group) if group else None
    return HostWeight.of(Weight(fmt, shape, codes, scale, None, group), name)


def _number(code: str, key: str) -> int:
    found = re.search(rf"\.{key}:\s+(\d+)", code)
    assert found is not None, key
    return int(found[1])


def _cuda_resources(cubin: bytes) -> tuple[int, int]:
    """Return registers and spilt words, as triton's own tool reads them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+)", told), re.search(r"STACK:(\d+)", told)
    assert registers is not None and stack is not None, told
    return int(registers[1]), int(stack[1]) // 4
