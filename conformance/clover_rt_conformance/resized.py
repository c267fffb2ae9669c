"""Cases with other capacities: rows of NaN past the table, and another layout of StepParams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clover_rt.plan.case_run import FILL, Array, pattern
from clover_rt.spec import Case, OpSpec, Role, StepLayout, StepParams

MORE = {"T": 5, "W": 3}


def padded(spec: OpSpec, case: Case) -> Case:
    """Return a case whose dynamic axes have more room than its table; what is there is NaN."""
    axes = {a: n + MORE.get(a, 0) for a, n in case.axes.items()}

    def build(rng: np.random.Generator) -> Any:
        inputs = case.build(rng)
        for o in spec.operands:
            value = inputs.get(o.name)
            if isinstance(value, np.ndarray) and o.role is not Role.PARAMS:
                inputs[o.name] = grown(value, spec.shape(o.name, axes))
        return inputs

    return replace(case, axes=axes, build=build)


def grown(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array at the start of a larger one of NaN, or as integers of a pattern."""
    if array.shape == shape:
        return array
    count = int(np.prod(shape)) * array.dtype.itemsize
    out = pattern(FILL, count).copy().view(array.dtype).reshape(shape)
    out[tuple(slice(n) for n in array.shape)] = array
    return out


def relaid(case: Case, layout: StepLayout) -> Case:
    """Return a case whose step table has other capacities, so that its sections lie elsewhere."""

    def build(rng: np.random.Generator) -> Any:
        inputs: Mapping[str, Any] = case.build(rng)
        return {**inputs, "params": moved(inputs["params"], layout)}

    return replace(case, layout=layout, build=build)


def moved(params: StepParams, layout: StepLayout) -> StepParams:
    """Return the same table in another layout; AssertionError where it does not fit."""
    out = StepParams(layout)
    for name, (offset, dtype, items) in params.layout.sections.items():
        start, _, room = layout.sections[name]
        source = params.buffer[offset : offset + items * dtype.itemsize].view(dtype)
        live = min(items, room)
        assert not source[live:].view(np.uint8).any(), f"{name} has more than {room} items"
        target = out.buffer[start : start + live * dtype.itemsize].view(dtype)
        target[:] = source[:live]
    return out
