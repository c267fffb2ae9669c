"""Run a layer op by its decomposition, and derive its tolerance from that.

A fused kernel rounds in other places than the decomposition does, so no fixed number fits every
case: the tolerance of a layer case is four times the largest deviation that rounding every edge to
the declared numerics causes in the float64 decomposition, over eight seeded runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from clover_rt.ops.common import Array
from clover_rt.spec import Case, DType, Node, Numerics, OpSpec, Role, Tolerance

Round = Callable[[Array], Array]
RUNS = 8
MARGIN = 4.0
DERIVED: Mapping[Numerics, Tolerance] = {
    n: Tolerance(0.0, 0.0, f"derived for each case: {MARGIN:g} x the deviation of {RUNS} runs")
    for n in Numerics
}


def run_nodes(
    nodes: list[Node],
    values: dict[str, Any],
    specs: Mapping[str, OpSpec],
    round_edge: Round | None = None,
) -> None:
    """Run primitive nodes by their references; `values` gains every value by name.

    Arrays of states are updated in place in their own element type. round_edge is applied to each
    floating-point output.
    """
    for node in nodes:
        spec = specs[node.op]
        assert spec.reference is not None, f"{node.op} is not a primitive"
        given = {
            o.name: values[node.operands[o.name]]
            for o in spec.operands
            if o.role is not Role.OUTPUT and o.name in node.operands
        }
        out = spec.reference(**given, **node.attrs)
        for name, array in out.items():
            operand = spec.operand(name)
            if round_edge is not None and operand.dtype in (DType.EDGE, DType.F32):
                array = round_edge(array)
            values[node.operands[name]] = array


def case_node(spec: OpSpec, case: Case) -> Node:
    """Return a case as a node whose values are named like its operands."""
    names = {o.name: o.name for o in spec.operands}
    return Node(spec.name, spec.name, names, case.axes, case.attrs)


def run_case(
    spec: OpSpec,
    case: Case,
    inputs: Mapping[str, Any],
    specs: Mapping[str, OpSpec],
    round_edge: Round | None = None,
) -> dict[str, Any]:
    """Return {operand: value} of the outputs and states of a case, inputs left as they are.

    A layer op runs by its decomposition. States are float64, so nothing but round_edge rounds.
    """
    values = dict(inputs)
    for o in spec.operands:
        if o.role in (Role.STATE, Role.INOUT) and o.name in values:
            array = np.array(values[o.name])
            values[o.name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    node = case_node(spec, case)
    given = {k: v for k, v in node.operands.items() if k in values or _is_output(spec, k)}
    node = Node(node.name, node.op, given, node.axes, node.attrs)
    nodes = [node] if spec.decompose is None else spec.decompose(node, case.table)
    run_nodes(nodes, values, specs, round_edge)
    return {o.name: values[o.name] for o in spec.operands if o.is_written and o.name in values}


def _is_output(spec: OpSpec, name: str) -> bool:
    return spec.operand(name).role is Role.OUTPUT


def rounding(numerics: Numerics, rng: np.random.Generator) -> Round:
    """Return a function that rounds an edge to the numerics, nudged at random by half a step.

    Without the nudge eight runs would be one run; with it each sees another set of roundings.
    """

    def nudge(x: Array, step: float) -> Array:
        return x * (1 + rng.uniform(-step, step, x.shape))

    def f32(x: Array) -> Array:
        return nudge(x, 2.0**-23).astype(np.float32).astype(np.float64)

    def bf16(x: Array) -> Array:
        rounded: Array = nudge(x, 2.0**-9).astype(np.float32).astype(ml_dtypes.bfloat16)
        return rounded.astype(np.float64)

    def int8(x: Array) -> Array:
        if x.shape[-1] % 32 or x.size == 0:
            return f32(x)
        groups = x.reshape(*x.shape[:-1], -1, 32)
        scale = np.abs(groups).max(axis=-1, keepdims=True) / 127
        step = np.where(scale == 0, 1, scale)
        codes = np.rint(groups / step + rng.uniform(-0.25, 0.25, groups.shape))
        return (codes * step).reshape(x.shape)

    return {Numerics.F32: f32, Numerics.BF16: bf16, Numerics.INT8_G32: int8}[numerics]


def derive_tolerance(
    spec: OpSpec, case: Case, numerics: Numerics, specs: Mapping[str, OpSpec], seed: int = 0
) -> Tolerance:
    """Return the tolerance of a layer case, relative to the largest value of each output."""
    inputs = case.inputs(seed)
    want = run_case(spec, case, inputs, specs)
    worst = 0.0
    for run in range(RUNS):
        rng = np.random.default_rng(run)
        got = run_case(spec, case, inputs, specs, rounding(numerics, rng))
        for name, array in want.items():
            if array.dtype.kind != "f" or array.size == 0:
                continue
            scale = np.nanmax(np.abs(array))
            deviation = np.nanmax(np.abs(got[name] - array))
            worst = max(worst, float(deviation / scale) if scale else 0.0)
    why = f"{MARGIN:g} x {worst:.2e}, the largest of {RUNS} runs rounded to {numerics.value}"
    return Tolerance(0.0, MARGIN * worst, why)
