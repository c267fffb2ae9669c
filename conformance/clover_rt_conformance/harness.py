"""Run one case of one op on one device and judge everything that the contract says about it.

Operands lie in buffers of their own between guard bands; outputs are filled with NaN (integers:
a pattern) before the call. Afterwards the outputs' live rows and the state are compared with the
reference, and everything else must be as it was, to the bit. A second call on the same inputs must
give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from clover_rt.backend import Buffer, Device, Kernel, Tensor, Usage
from clover_rt.errors import Unsupported
from clover_rt.spec import (
    Case,
    DType,
    Format,
    HostWeight,
    Mismatch,
    Operand,
    OpSpec,
    Picks,
    Precision,
    Role,
    Signature,
    StepParams,
    Weight,
    picks_shape,
)

Array = npt.NDArray[Any]
GUARD = 256
GUARD_BYTE = 0xA5
# as float32 and as bfloat16 pairs a quiet NaN with a payload; as an integer far outside any range
FILL = np.array([0x7FC07FC1], "<u4").view(np.uint8)
USAGES = {Role.STATE: Usage.STATE, Role.PARAMS: Usage.PARAMS}


def signature(spec: OpSpec, case: Case, dtypes: tuple[str, str], precision: Precision) -> Signature:
    """Return the signature of a case; dtypes is (edge, KV) as `Device.dtypes` returns them."""
    return _signature(spec, case, case.inputs(), dtypes, precision)


def call(
    device: Device,
    spec: OpSpec,
    case: Case,
    precision: Precision,
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Array]:
    """Run the kernel once and return every operand but the weights as it is afterwards.

    inputs  operands instead of the case's own, with its axes as capacities
    """
    dtypes = device.dtypes(precision)
    given = _typed(spec, case.inputs() if inputs is None else inputs, dtypes)
    sig = _signature(spec, case, given, dtypes, precision)
    kernel = _kernel(device, spec, case, sig)
    with _Call(device, kernel, sig, given, _filled(spec, case, given, dtypes)) as bound:
        return bound.run()


def run_case(
    device: Device, spec: OpSpec, case: Case, precision: Precision, seed: int = 0
) -> list[Mismatch]:
    """Return every way in which the device's kernel breaks the contract on this case.

    Raises Unsupported (CRT-3110) where the kernel refuses the signature.
    """
    dtypes = device.dtypes(precision)
    inputs = _typed(spec, case.inputs(seed), dtypes)
    sig = _signature(spec, case, inputs, dtypes, precision)
    kernel = _kernel(device, spec, case, sig)
    tolerance = spec.tolerance[kernel.numerics(sig)]
    expected = _reference(spec, case, inputs)
    before = _filled(spec, case, inputs, dtypes)
    with _Call(device, kernel, sig, inputs, before) as bound:
        first = bound.run()
        problems = bound.problems()
        second = bound.run()
    problems += _judge(spec, case, tolerance, before, first, expected)
    for name in first:
        if first[name].tobytes() != second[name].tobytes():
            problems.append(_note(name, "a second call on the same inputs gives other bits"))
    return problems


def _kernel(device: Device, spec: OpSpec, case: Case, sig: Signature) -> Kernel:
    kernel = device.kernels[spec.name]
    refusal = kernel.supports(sig)
    if refusal:
        raise Unsupported(
            what=f"{device.name} was to run {case.id} in {sig.precision.value}",
            evidence=refusal,
            fix="let the plan place this op on the host, or choose other sizes",
            code="CRT-3110",
        )
    return kernel


@dataclass(frozen=True, slots=True)
class _Expected:
    """outputs as the reference returned them, and its state operands after the call."""

    outputs: Mapping[str, Any]
    written: Mapping[str, Array]


class _Call:
    """A bound step over guarded buffers, run from the same inputs as often as asked."""

    def __init__(
        self,
        device: Device,
        kernel: Kernel,
        sig: Signature,
        inputs: Mapping[str, Any],
        before: Mapping[str, Array],
    ) -> None:
        self.device = device
        self.before = before
        self.buffers: dict[str, Buffer] = {}
        tensors = {}
        for name, array in before.items():
            tensors[name] = self._tensor(name, array.dtype, array.shape)
        scratch = None
        if kernel.scratch(sig):
            shape = (kernel.scratch(sig),)
            scratch = self._tensor("", np.dtype(np.uint8), shape)
        weights = {n: HostWeight.of(w, n) for n, w in inputs.items() if isinstance(w, Weight)}
        prepared = kernel.prepare(sig.static(), weights)
        self.step = kernel.bind(sig, tensors, prepared, scratch)

    def _tensor(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Tensor:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.buffers[name] = self.device.alloc(nbytes + 2 * GUARD, Usage.EDGE)
        return Tensor(self.buffers[name], dtype, shape, GUARD)

    def run(self) -> dict[str, Array]:
        """Upload the inputs, run, and return every operand as it is afterwards."""
        for name, buffer in self.buffers.items():
            image = np.full(buffer.nbytes, GUARD_BYTE, np.uint8)
            if name in self.before:
                image[GUARD:-GUARD] = self.before[name].reshape(-1).view(np.uint8)
            self.device.upload(buffer, 0, image)
        self.step()
        self.device.synchronize()
        out = {}
        for name, array in self.before.items():
            out[name] = np.empty_like(array)
            self.device.download(self.buffers[name], GUARD, out[name])
        return out

    def problems(self) -> list[Mismatch]:
        """Return the operands whose guard bands were written."""
        out = []
        for name, buffer in self.buffers.items():
            for offset, where in ((0, "in front of"), (buffer.nbytes - GUARD, "behind")):
                band = np.empty(GUARD, np.uint8)
                self.device.download(buffer, offset, band)
                if (band != GUARD_BYTE).any():
                    out.append(_note(name or "scratch", f"memory {where} it was written"))
        return out

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self.buffers.values():
            self.device.free(buffer)


def _numpy_type(operand: Operand, dtypes: tuple[str, str]) -> np.dtype[Any]:
    edge, kv = dtypes
    name = {DType.EDGE: edge, DType.KV: kv}.get(operand.dtype, operand.dtype.value)
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _typed(spec: OpSpec, inputs: Mapping[str, Any], dtypes: tuple[str, str]) -> dict[str, Any]:
    """Return the inputs with edge and KV operands in the device's types."""
    out = dict(inputs)
    for operand in spec.operands:
        value = inputs.get(operand.name)
        if isinstance(value, np.ndarray):
            out[operand.name] = value.astype(_numpy_type(operand, dtypes))
    return out


def _signature(
    spec: OpSpec,
    case: Case,
    inputs: Mapping[str, Any],
    dtypes: tuple[str, str],
    precision: Precision,
) -> Signature:
    given: list[tuple[str, str]] = []
    formats: list[tuple[str, Format, int]] = []
    for operand in spec.operands:
        value = inputs.get(operand.name)
        if isinstance(value, Weight):
            formats.append((operand.name, value.format, value.group))
        elif value is not None or operand.role is Role.OUTPUT:
            given.append((operand.name, _numpy_type(operand, dtypes).name))
    return Signature(
        spec.name,
        case.table,
        precision,
        tuple(case.axes.items()),
        tuple(given),
        tuple(formats),
        tuple(case.attrs.items()),
        case.layout,
    )


def _reference(spec: OpSpec, case: Case, inputs: Mapping[str, Any]) -> _Expected:
    assert spec.reference is not None, f"{spec.name} is a layer op: run its primitives"
    copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in inputs.items()}
    with np.errstate(all="ignore"):
        outputs = spec.reference(**copies, **case.attrs)
    return _Expected(outputs, {name: copies[name] for name in spec.writes})


def _filled(
    spec: OpSpec, case: Case, inputs: Mapping[str, Any], dtypes: tuple[str, str]
) -> dict[str, Array]:
    """Return the bytes of every operand before the call: inputs as given, outputs as NaN."""
    out = {}
    for operand in spec.operands:
        value = inputs.get(operand.name)
        if isinstance(value, StepParams):
            out[operand.name] = value.buffer
        elif isinstance(value, np.ndarray):
            out[operand.name] = value
        elif operand.role is Role.OUTPUT:
            dtype = _numpy_type(operand, dtypes)
            shape = spec.shape(operand.name, case.axes)
            count = int(np.prod(shape)) * dtype.itemsize
            out[operand.name] = np.resize(FILL, count).view(dtype).reshape(shape)
    return out


def _judge(
    spec: OpSpec,
    case: Case,
    tolerance: Any,
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    expected: _Expected,
) -> list[Mismatch]:
    got: dict[str, Any] = {}
    want: dict[str, Any] = {}
    problems = []
    for name, value in expected.outputs.items():
        if isinstance(value, Picks):
            live = picks_shape(*value.ids.shape)[0]
            got[name], want[name] = after[name], value
        else:
            live = len(value)
            # NaN where the reference left what it found: there the fill must be intact
            left = _left_alone(value, before.values())
            if not _same_bits(after[name][:live][left], before[name][:live][left]):
                problems.append(_note(name, "a row that is to be left alone was written"))
            got[name] = after[name][:live]
            want[name] = np.where(left, got[name].astype(value.dtype), value)
        if not _same_bits(after[name][live:], before[name][live:]):
            problems.append(_note(name, "rows past the table were written"))
    for name, value in expected.written.items():
        got[name], want[name] = after[name], value
        problems += _untouched_slices(name, before[name], after[name], value)
    for name, array in before.items():
        if name not in got and not _same_bits(after[name], array):
            problems.append(_note(name, "an input was written"))
    return problems + spec.check(case, got, want, tolerance)


def _left_alone(value: Array, inputs: Iterable[Array]) -> Array:
    """Return where the reference's NaN means `left as it was`.

    In a case whose inputs hold NaN it is a result instead, such as the weight of a NaN logit.
    """
    if value.dtype.kind != "f" or any(_has_nan(array) for array in inputs):
        return np.zeros(value.shape, bool)
    return np.isnan(value)


def _has_nan(array: Array) -> bool:
    """Does an array hold a NaN that is not the fill of an output?"""
    if array.dtype.kind not in "fV" or not array.size:
        return False
    values = array.astype(np.float32)
    return bool(np.isnan(values).any()) and not bool(np.isnan(values).all())


def _untouched_slices(name: str, before: Array, after: Array, value: Array) -> list[Mismatch]:
    """Slices of the leading axes that the reference left alone must be left alone to the bit."""
    lead = max(1, min(2, before.ndim - 1))
    shape = (int(np.prod(before.shape[:lead])), -1)
    old, new, right = (np.ascontiguousarray(a).reshape(shape) for a in (before, after, value))
    for i in range(shape[0]):
        if _same_bits(old[i], right[i]) and not _same_bits(old[i], new[i]):
            index = tuple(int(j) for j in np.unravel_index(i, before.shape[:lead]))
            return [Mismatch(name, index, np.nan, np.nan, 0.0, "state not of the pass was written")]
    return []


def _same_bits(a: Array, b: Array) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _note(operand: str, note: str) -> Mismatch:
    return Mismatch(operand, (), np.nan, np.nan, 0.0, note)
