"""Real kernels of a device against the operations' references; runs in a child process.

The full judgement is the conformance suite's; this is a minute's worth of it that needs no more
than the core, on the user's own machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from clover_rt.backend import Buffer, Device, Kernel, Tensor, Usage
from clover_rt.ops import OPS
from clover_rt.ops.common import is_left
from clover_rt.plan.case_run import Array, filled, signature, typed
from clover_rt.plugins import open_device
from clover_rt.spec import (
    Case,
    HostWeight,
    Mismatch,
    OpSpec,
    Picks,
    Precision,
    Role,
    Signature,
    Weight,
)

CHECKED = (
    *("linear", "expert_gemm", "rms_norm", "causal_conv", "block_scan", "block_memory"),
    *("rope", "attend", "router_topk", "coreset", "combine", "confidence_topk"),
)
"""Products in every weight format, norms, the delta rule, softmaxes with masked entries, top-k."""

PRODUCTS = ("linear", "expert_gemm")
"""These use a device's matrix units in `fast`, which `exact` may not touch."""

CASES_PER_OP = 8
COPIED_BYTES = 1 << 20


def check(backend: str, device: str) -> dict[str, Any]:
    """Open a device, copy through it, run cases of its kernels; return what was right and wrong."""
    opened = open_device(backend, device)[1]
    try:
        ops = [check_op(opened, OPS[name]) for name in CHECKED if name in opened.kernels]
        return {
            "device": opened.name,
            "tuning": tuning(opened),
            "copy": copy_problem(opened),
            "ops": ops,
            "declined": [name for name in CHECKED if name not in opened.kernels],
        }
    finally:
        opened.close()


def tuning(device: Device) -> dict[str, str] | None:
    """Return a card's arch and its table of tile sizes, "" for none; None where it takes none."""
    found: Any = getattr(device, "tuning", None)
    is_software = device.info is not None and device.info.is_software
    if is_software or not hasattr(found, "source"):
        return None
    return {"arch": getattr(device, "arch", ""), "table": str(found.source or "")}


def copy_problem(device: Device) -> str:
    """Send random bytes up, copy them on the device, bring them back; "" if they are the same."""
    sent = np.random.default_rng(0).integers(0, 256, COPIED_BYTES, np.uint8)
    first, second = (device.alloc(COPIED_BYTES, Usage.EDGE) for _ in range(2))
    back = np.zeros_like(sent)
    device.upload(first, 0, sent)
    device.copy(second, 0, first, 0, COPIED_BYTES)
    device.download(second, 0, back)
    device.synchronize()
    device.free(first)
    device.free(second)
    wrong = int((sent != back).sum())
    return f"{wrong} of {COPIED_BYTES} bytes differ after a round trip" if wrong else ""


def check_op(device: Device, spec: OpSpec) -> dict[str, Any]:
    """Run a few cases of one op; what raises is told as wrong, so that other ops still run."""
    right, refused, wrong = 0, [], []
    precisions = tuple(Precision) if spec.name in PRODUCTS else (Precision.EXACT,)
    for precision, case in product(precisions, chosen(spec)):
        about = case.id if precision is Precision.EXACT else f"{case.id} in {precision.value}"
        try:
            answer = run_case(device, spec, case, precision)
        # a plugin's kernel may raise anything
        except Exception as error:
            wrong.append(f"{about}: {type(error).__name__}: {error}")
            continue
        if isinstance(answer, str):
            refused.append(f"{about}: {answer}")
        elif answer:
            wrong.append(f"{about}: {answer[0]}")
        else:
            right += 1
    return {
        "op": spec.name,
        "precisions": [p.value for p in precisions],
        "right": right,
        "refused": refused,
        "wrong": wrong,
    }


def chosen(spec: OpSpec) -> list[Case]:
    """Return the largest case of each weight format, table class and number of candidates."""
    sized = []
    for case in spec.cases():
        inputs = case.inputs()
        formats = ((n, v.format, v.group) for n, v in inputs.items() if isinstance(v, Weight))
        arrays = (v for v in inputs.values() if isinstance(v, np.ndarray))
        keys = {("table", case.table), ("formats", *formats), ("top", case.axes.get("top"))}
        sized.append((sum(v.nbytes for v in arrays), case, keys))
    seen: set[Any] = set()
    out: list[Case] = []
    for _, case, keys in sorted(sized, key=lambda item: -item[0]):
        if keys - seen:
            seen |= keys
            out.append(case)
    return out[:CASES_PER_OP]


def run_case(
    device: Device, spec: OpSpec, case: Case, precision: Precision
) -> list[Mismatch] | str:
    """Return every mismatch of one case, or why the kernel refuses it."""
    dtypes = device.dtypes(precision)
    inputs = typed(spec, case.inputs(), dtypes)
    sig = signature(spec, case, dtypes, precision)
    kernel = device.kernels[spec.name]
    refusal = kernel.supports(sig)
    if refusal:
        return refusal
    assert spec.reference is not None, f"{spec.name} is a layer op"
    copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in inputs.items()}
    given = {o.name: copies.get(o.name) for o in spec.operands if o.role is not Role.OUTPUT}
    with np.errstate(all="ignore"):
        want: dict[str, Any] = spec.reference(**given, **case.attrs)
    after = _run(device, kernel, sig, spec, case, inputs, dtypes)
    got: dict[str, Any] = {}
    for name, value in list(want.items()):
        if isinstance(value, Picks):
            got[name] = after[name]
            continue
        live = after[name][: len(value)]
        got[name] = live
        if value.dtype.kind == "f":
            want[name] = np.where(is_left(value), live.astype(value.dtype), value)
    for name in spec.writes:
        got[name], want[name] = after[name], copies[name]
    return spec.check(case, got, want, spec.tolerance[kernel.numerics(sig)])


def _run(
    device: Device,
    kernel: Kernel,
    sig: Signature,
    spec: OpSpec,
    case: Case,
    inputs: Mapping[str, Any],
    dtypes: tuple[str, str],
) -> dict[str, Array]:
    """Bind the kernel to fresh buffers, run it once, return every operand as it is afterwards."""
    arrays = filled(spec, case, inputs, dtypes)
    buffers: dict[str, Buffer] = {}
    tensors = {}
    for name, array in arrays.items():
        buffers[name] = device.alloc(max(array.nbytes, 1), Usage.EDGE)
        tensors[name] = Tensor(buffers[name], array.dtype, array.shape)
        device.upload(buffers[name], 0, np.ascontiguousarray(array))
    scratch, need = None, kernel.scratch(sig)
    if need:
        buffers[""] = device.alloc(need, Usage.SCRATCH)
        scratch = Tensor(buffers[""], np.dtype(np.uint8), (need,))
    weights = {n: HostWeight.of(v, n) for n, v in inputs.items() if isinstance(v, Weight)}
    prepared = kernel.prepare(sig.static(), weights)
    kernel.bind(sig, tensors, prepared, scratch)()
    device.synchronize()
    out = {}
    for name, array in arrays.items():
        out[name] = np.empty_like(array, order="C")
        device.download(buffers[name], 0, out[name])
    for buffer in buffers.values():
        device.free(buffer)
    return out
