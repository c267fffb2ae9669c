"""A case of a contract as a plan puts it to a device: element types, signatures, filled outputs.

What judges kernels case by case shares this: the suite, and doctor's short test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from clover_rt.ops import OPS
from clover_rt.ops.derived import case_node
from clover_rt.spec import (
    Case,
    DType,
    Format,
    Node,
    Operand,
    OpSpec,
    Precision,
    Role,
    Signature,
    StepParams,
    Weight,
)

Array = npt.NDArray[Any]
# as float32 and as bfloat16 pairs a quiet NaN with a payload; as an integer far outside any range
FILL = 0x7FC07FC1


def numpy_type(operand: Operand, dtypes: tuple[str, str]) -> np.dtype[Any]:
    """Return an operand's element type on a device; dtypes is (edge, KV) as it returns them."""
    edge, kv = dtypes
    name = {DType.EDGE: edge, DType.KV: kv}.get(operand.dtype, operand.dtype.value)
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def typed(spec: OpSpec, inputs: Mapping[str, Any], dtypes: tuple[str, str]) -> dict[str, Any]:
    """Return the inputs with edge and KV operands in the device's types."""
    out = dict(inputs)
    for operand in spec.operands:
        value = inputs.get(operand.name)
        if isinstance(value, np.ndarray):
            out[operand.name] = value.astype(numpy_type(operand, dtypes))
    return out


def signature(spec: OpSpec, case: Case, dtypes: tuple[str, str], precision: Precision) -> Signature:
    """Return the signature of a case; dtypes is (edge, KV) as `Device.dtypes` returns them."""
    return node_signature(case_node(spec, case), case, case.inputs(), dtypes, precision)


def node_signature(
    node: Node,
    case: Case,
    values: Mapping[str, Any],
    dtypes: tuple[str, str],
    precision: Precision,
) -> Signature:
    """Return what a kernel is asked about a node of a case; `values` are those that are given."""
    spec = OPS[node.op]
    given: list[tuple[str, str]] = []
    formats: list[tuple[str, Format, int]] = []
    for operand in spec.operands:
        value = values.get(operand.name)
        if isinstance(value, Weight):
            formats.append((operand.name, value.format, value.group))
        elif operand.role is not Role.PARAMS and (
            value is not None or (operand.role is Role.OUTPUT and operand.name in node.operands)
        ):
            given.append((operand.name, numpy_type(operand, dtypes).name))
    dynamic = {"T": 1, "W": 1, "L": 64 * case.axes.get("slot_pages", 0)}
    dynamic |= {a: case.axes[a] for a in ("T", "W") if a in case.axes}
    return Signature(
        node.op,
        case.table,
        precision,
        tuple(sorted({**dynamic, **node.axes}.items())),
        tuple(given),
        tuple(formats),
        tuple(sorted(node.attrs.items())),
        case.layout,
    )


def filled(
    spec: OpSpec, case: Case, inputs: Mapping[str, Any], dtypes: tuple[str, str]
) -> dict[str, Array]:
    """Return every operand but the weights before a call: inputs as given, outputs filled."""
    out = {}
    for operand in spec.operands:
        value = inputs.get(operand.name)
        if isinstance(value, StepParams):
            out[operand.name] = value.buffer
        elif isinstance(value, np.ndarray):
            out[operand.name] = value
        elif operand.role is Role.OUTPUT:
            out[operand.name] = empty(spec, operand, case.axes, dtypes)
    return out


def empty(
    spec: OpSpec, operand: Operand, axes: Mapping[str, int], dtypes: tuple[str, str]
) -> Array:
    """Return an output as it is before a call: NaN, or as an integer a pattern."""
    dtype = numpy_type(operand, dtypes)
    shape = spec.shape(operand.name, axes)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return pattern(FILL, count).view(dtype).reshape(shape)


def pattern(word: int, nbytes: int) -> Array:
    """Return bytes that repeat a 32-bit word."""
    return np.full(-(-nbytes // 4), word, "<u4").view(np.uint8)[:nbytes]
