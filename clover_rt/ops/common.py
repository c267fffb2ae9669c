"""Pieces that several contracts share: operands, tolerances with their reasons, tables of cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from clover_rt.spec import (
    DType,
    Format,
    Kind,
    Numerics,
    Operand,
    Pass,
    Role,
    Segment,
    Signature,
    StepLayout,
    StepParams,
    TableClass,
    Tolerance,
    Wanted,
    Weight,
    Work,
    encode_q4,
    encode_q8,
)

Array = npt.NDArray[Any]

PARAMS = Operand("params", Role.PARAMS, DType.U8, ("params",), "StepParams of the pass")


def edge(name: str, shape: Sequence[str], doc: str, optional: bool = False) -> Operand:
    return Operand(name, Role.INPUT, DType.EDGE, tuple(shape), doc, optional)


def result(name: str, shape: Sequence[str], doc: str, dtype: DType = DType.EDGE) -> Operand:
    return Operand(name, Role.OUTPUT, dtype, tuple(shape), doc)


def given(
    name: str, dtype: DType, shape: Sequence[str], doc: str, optional: bool = False
) -> Operand:
    return Operand(name, Role.INPUT, dtype, tuple(shape), doc, optional)


def state(name: str, dtype: DType, shape: Sequence[str], doc: str) -> Operand:
    return Operand(name, Role.STATE, dtype, tuple(shape), doc)


def weight(name: str, shape: Sequence[str], doc: str, optional: bool = False) -> Operand:
    return Operand(name, Role.WEIGHT, DType.EDGE, tuple(shape), doc, optional)


# one float32 rounding is 6e-8; elementwise formulas chain about ten of them and one exp
ELEMENTWISE = {
    Numerics.F32: Tolerance(4e-6, 1e-6, "about ten float32 roundings and one exp, 4x margin"),
    Numerics.BF16: Tolerance(2e-2, 4e-3, "operands and result rounded to 8 bits (2^-9 each)"),
}
# errors of a sum of K products grow with sqrt(K): 6e-8 * sqrt(4096) = 4e-6 of the output's scale
SUMS = {
    Numerics.F32: Tolerance(2e-6, 2e-5, "K <= 8192 products summed in float32, 4x margin"),
    Numerics.BF16: Tolerance(8e-3, 8e-3, "activations and result rounded to 8 bits, 2x margin"),
    Numerics.INT8_G32: Tolerance(
        8e-3, 3e-2, "activations rounded to 1/254 of the largest of 32, 3x margin"
    ),
}
EXACT = {n: Tolerance(0.0, 0.0, "data movement or integers: nothing is rounded") for n in Numerics}


def live_work(flops_per_row: float, bytes_per_row: float, fixed_bytes: float, rows: int) -> Work:
    return Work(flops_per_row * rows, bytes_per_row * rows + (fixed_bytes if rows else 0))


def weight_bytes(sig: Signature, name: str, count: int) -> float:
    """Return the bytes of `count` numbers of a weight operand in its format."""
    fmt, group = sig.format(name)
    if fmt is Format.Q4:
        return count * (0.5 + 2 / group)
    if fmt is Format.Q8:
        return count * (1 + 2 / 32)
    return float(count * fmt.codes_dtype.itemsize)


def random_weight(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    fmt: str = "bf16",
    scale: float | None = None,
    zero_point: bool = False,
) -> Weight:
    """Return random normals scaled by fan-in, in a format: f32, f16, bf16, q8, q4-32/64/128."""
    values = rng.standard_normal(shape).astype(np.float32)
    values *= shape[-1] ** -0.5 if scale is None else scale
    return encode(values, fmt, zero_point)


def encode(values: Array, fmt: str, zero_point: bool = False) -> Weight:
    """Return float32 numbers as a weight in a format named as for `random_weight`."""
    kind, _, group = fmt.partition("-")
    if kind == "q8":
        return encode_q8(values)
    if kind == "q4":
        return encode_q4(values, int(group), zero_point=zero_point)
    types: dict[str, npt.DTypeLike] = {
        "f32": np.float32,
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
    }
    return Weight(Format(kind), values.shape, values.astype(types[kind]))


def vector(values: Array) -> Weight:
    """Return float32 numbers as a weight."""
    return Weight(Format.F32, values.shape, values.astype(np.float32))


def random_rows(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def table(
    segments: Sequence[tuple[Kind, int, int, int]],
    layout: StepLayout | None = None,
    tokens: Array | None = None,
    wanted: Sequence[Wanted] = (),
    **more: Any,
) -> StepParams:
    """Return StepParams for (kind, slot, rows, position) segments laid one behind the other."""
    params = StepParams(layout or StepLayout())
    rows, row0 = [], 0
    for kind, slot, n, position in segments:
        rows.append(Segment(kind, slot, row0, n, position))
        row0 += n
    ids = np.zeros(row0, np.int32) if tokens is None else tokens
    more = {name: tuple(value) for name, value in more.items()}
    work = Pass(tuple(rows), tuple(ids.tolist()), wanted=tuple(wanted), **more)
    params.write(work)
    return params


def plain_table(rows: int) -> StepParams:
    """Return a table of one commit of `rows` rows in slot 0, or an empty one."""
    return table([(Kind.COMMIT, 0, rows, 0)] if rows else [])


def mixed_tables(widths: Sequence[int]) -> Iterator[tuple[str, TableClass, list[Any]]]:
    """Yield (id, class, segments) of every kind and mixture, with these block widths."""
    for n in widths:
        yield f"commit{n}", TableClass.COMMIT, [(Kind.COMMIT, 1, n, 5)]
        yield f"preview{n}", TableClass.PREVIEW, [(Kind.PREVIEW, 1, n, 5)]
        yield f"verify{n}", TableClass.VERIFY, [(Kind.VERIFY, 1, n, 5)]
    n = widths[-1]
    pair = [(Kind.COMMIT, 2, n, 70), (Kind.PREVIEW, 2, n, 70 + n)]
    yield f"commit{n}+preview{n}", TableClass.COMMIT_PREVIEW, pair
    several = [*pair, (Kind.VERIFY, 0, min(n, 8), 3), (Kind.COMMIT, 1, 1, 0)]
    yield "four-sequences", TableClass.MIXED, several
    yield "empty", TableClass.MIXED, []


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e^-x) without overflow."""
    e = np.exp(-np.abs(x))
    out: Array = np.where(x >= 0, 1, e) / (1 + e)
    return out


def silu(x: Array) -> Array:
    out: Array = x * sigmoid(x)
    return out


def softplus(x: Array) -> Array:
    """Return log(1 + e^x) without overflow."""
    out: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return out


def unit(x: Array) -> Array:
    """Return rows of the last axis divided by sqrt(sum of squares + 1e-6)."""
    out: Array = x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)
    return out


def f64(x: Any) -> Array:
    """Return an operand in float64: an array, or a weight's numbers."""
    return x.values(np.float64) if isinstance(x, Weight) else np.asarray(x).astype(np.float64)


def left_alone(*shape: int) -> Array:
    """Return float64 numbers that stand for "this op leaves the element as it was".

    They are NaNs with bits of their own, so that `is_left` tells them from a computed NaN.
    """
    return np.full(shape, _LEFT, np.uint64).view(np.float64)


def is_left(values: Array) -> Array:
    """Return where a reference's float64 result leaves the output as it was."""
    out: Array = np.ascontiguousarray(values, np.float64).view(np.uint64) == _LEFT
    return out


_LEFT = np.uint64(0x7FF8_0000_1EF7_A10E)


def axes_of(**axes: int) -> Mapping[str, int]:
    return axes
