"""A kernel that runs an op's numpy reference: for tests, and under --allow-reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Device, Kernel, Step, Tensor
from clover_rt.ops import OPS
from clover_rt.ops.common import is_left
from clover_rt.ops.derived import run_nodes
from clover_rt.spec import HostWeight, Node, OpSpec, Picks, Role, Signature, StepParams


class ReferenceKernel(Kernel):
    """Downloads the operands, runs the reference in float64, uploads what it may write.

    Not row-invariant: float64 products round by row count, and what a layer op keeps in float64
    is rounded where it is split over passes.
    """

    def __init__(self, spec: OpSpec, device: Device) -> None:
        self.spec = spec
        self.device = device

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Mapping[str, HostWeight],
        scratch: Tensor | None,
    ) -> Step:
        spec, device = self.spec, self.device
        arrays = {name: np.empty(t.shape, t.dtype) for name, t in operands.items()}
        raw = np.empty(sig.layout.nbytes, np.uint8)
        params = StepParams(sig.layout, raw)
        weights = {name: w.whole() for name, w in prepared.items()}
        names = {o.name: o.name for o in spec.operands if o.name in arrays or o.name in weights}
        node = Node(spec.name, spec.name, {**names, "params": "params"}, dict(sig.axes))
        node = Node(node.name, node.op, node.operands, node.axes, dict(sig.attrs))

        def step() -> None:
            device.download(operands["params"].buffer, operands["params"].offset, raw)
            for name, array in arrays.items():
                if name != "params":
                    device.download(operands[name].buffer, operands[name].offset, array)
            values: dict[str, Any] = {**arrays, **weights, "params": params}
            nodes = [node] if spec.decompose is None else spec.decompose(node, sig.table)
            run_nodes(nodes, values, OPS)
            for o in spec.operands:
                if o.name in arrays and o.is_written:
                    _store(arrays[o.name], values[o.name], o.role)
                    tensor = operands[o.name]
                    device.upload(tensor.buffer, tensor.offset, arrays[o.name])

        return step


def _store(array: Any, result: Any, role: Role) -> None:
    """Write a result's live rows into the array at capacity, but for what the op leaves alone."""
    if isinstance(result, Picks):
        result.encode(array)
    elif role is Role.OUTPUT:
        live = array[: len(result)]
        if result.dtype.kind == "f":
            np.copyto(live, result.astype(array.dtype), where=~is_left(result))
        else:
            live[:] = result
