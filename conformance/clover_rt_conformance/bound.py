"""One case bound to a device: buffers between guard bands, and the steps that run it.

An op that the device has is one step. A layer op that it does not have is bound as its
decomposition, each primitive by the device's own kernel, with intermediate values in buffers of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.backend import Buffer, Device, Kernel, Step, Tensor, Usage
from clover_rt.errors import Unsupported
from clover_rt.ops import OPS
from clover_rt.ops.derived import case_node
from clover_rt.plan.case_run import FILL, empty, filled, node_signature, numpy_type, pattern
from clover_rt.spec import (
    Case,
    HostWeight,
    Mismatch,
    Node,
    Numerics,
    OpSpec,
    Precision,
    Role,
    Signature,
    Weight,
)

Array = npt.NDArray[Any]
GUARD = 256
# guard bands and scratch hold NaN in one call and small numbers in the next, so that reading them
# either spoils the answer or changes it
SURROUNDINGS = (FILL, 0xA5A5A5A5)
USAGES = {Role.STATE: Usage.STATE, Role.PARAMS: Usage.PARAMS}
COARSEST = (Numerics.F32, Numerics.BF16, Numerics.INT8_G32)


class Declined(Unsupported):
    """A kernel says that it does not take a signature, or a device that it has no such kernel."""

    code = "CRT-3110"


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of a bound case: the node, what it was asked, and who answered."""

    node: Node
    sig: Signature
    kernel: Kernel


def coarsest(parts: Sequence[Part]) -> Numerics:
    """Return the coarsest numerics of a case's kernels."""
    return max((p.kernel.numerics(p.sig) for p in parts), key=COARSEST.index)


def plan_parts(
    device: Device, spec: OpSpec, case: Case, precision: Precision, inputs: Mapping[str, Any]
) -> tuple[str, list[Part]]:
    """Return "native" or "composed", and the kernels that run a case on a device.

    Raises Declined (CRT-3110) with the kernels' reasons where the device does not take it.
    """
    dtypes = device.dtypes(precision)
    node = case_node(spec, case)
    given = {k: v for k, v in node.operands.items() if k in inputs or _is_output(spec, k)}
    node = replace(node, operands=given)
    sig = node_signature(node, case, inputs, dtypes, precision)
    refusal = _refusal(device, sig)
    if not refusal:
        return "native", [Part(node, sig, device.kernels[spec.name])]
    if spec.decompose is None:
        raise _declined(device, case, precision, [refusal])
    parts, refusals = [], []
    known = dict(inputs)
    for primitive in spec.decompose(node, case.table):
        sub = OPS[primitive.op]
        values = {o: known[name] for o, name in primitive.operands.items() if name in known}
        sig = node_signature(primitive, case, values, dtypes, precision)
        refusal = _refusal(device, sig)
        if refusal:
            refusals.append(f"{primitive.op}: {refusal}")
        else:
            parts.append(Part(primitive, sig, device.kernels[primitive.op]))
        for out in sub.outputs:
            name = primitive.operands.get(out.name)
            if name is not None and name not in known:
                known[name] = empty(sub, out, dict(sig.axes), dtypes)
    if refusals:
        raise _declined(device, case, precision, list(dict.fromkeys(refusals)))
    return "composed", parts


class Bound:
    """A case bound to a device, run from given operands as often as asked.

    how     "native" or "composed"
    before  every operand but the weights, outputs filled, as they are before a call
    """

    def __init__(
        self,
        device: Device,
        spec: OpSpec,
        case: Case,
        precision: Precision,
        inputs: Mapping[str, Any],
    ) -> None:
        self.device, self.spec, self.case = device, spec, case
        self.dtypes = device.dtypes(precision)
        self.how, self.parts = plan_parts(device, spec, case, precision, inputs)
        self.before = filled(spec, case, inputs, self.dtypes)
        self.buffers: dict[str, Buffer] = {}
        self.guard = -(-GUARD // device.alignment) * device.alignment
        self.lead = self.guard if device.views else 0
        self.steps: list[Step] = []
        try:
            self._bind(inputs)
        except BaseException:
            self.close()
            raise

    @property
    def numerics(self) -> Numerics:
        return coarsest(self.parts)

    @property
    def row_invariant(self) -> bool:
        return all(p.kernel.row_invariant(p.sig) for p in self.parts)

    def run(
        self, before: Mapping[str, Array] | None = None, surroundings: int = 0
    ) -> dict[str, Array]:
        """Upload the operands, run, and return every operand as it is afterwards.

        surroundings  0 or 1: what guard bands, scratch and intermediate values hold before
        """
        before = self.before if before is None else before
        for name, buffer in self.buffers.items():
            image = pattern(SURROUNDINGS[surroundings], buffer.nbytes)
            if name in before:
                raw = np.ascontiguousarray(before[name]).reshape(-1).view(np.uint8)
                image[self.lead : self.lead + raw.size] = raw
            self.device.upload(buffer, 0, image)
        self._surroundings = surroundings
        for step in self.steps:
            step()
        self.device.synchronize()
        out = {}
        for name, array in before.items():
            out[name] = np.empty_like(array, order="C")
            self.device.download(self.buffers[name], self.lead, out[name])
        return out

    def problems(self) -> list[Mismatch]:
        """Return the operands whose guard bands the last call wrote."""
        out = []
        for name, buffer in self.buffers.items():
            image = pattern(SURROUNDINGS[self._surroundings], buffer.nbytes)
            for offset, where in ((0, "in front of"), (buffer.nbytes - self.guard, "behind")):
                if offset == 0 and not self.lead:
                    continue
                band = np.empty(self.guard, np.uint8)
                self.device.download(buffer, offset, band)
                if (band != image[offset : offset + self.guard]).any():
                    out.append(note(name or "scratch", f"memory {where} it was written"))
        return out

    def close(self) -> None:
        """Free the buffers."""
        for buffer in self.buffers.values():
            self.device.free(buffer)
        self.buffers.clear()

    def __enter__(self) -> Bound:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, inputs: Mapping[str, Any]) -> None:
        roles = {o.name: USAGES.get(o.role, Usage.EDGE) for o in self.spec.operands}
        tensors = {
            name: self._tensor(name, array.dtype, array.shape, roles[name])
            for name, array in self.before.items()
        }
        weights = {n: HostWeight.of(w, n) for n, w in inputs.items() if isinstance(w, Weight)}
        for part in self.parts:
            node, sig, kernel = part.node, part.sig, part.kernel
            spec = OPS[node.op]
            for out in spec.outputs:
                name = node.operands.get(out.name)
                if name is not None and name not in tensors:
                    shape = spec.shape(out.name, dict(sig.axes))
                    dtype = numpy_type(out, self.dtypes)
                    tensors[name] = self._tensor(name, dtype, shape, Usage.EDGE)
            size = kernel.scratch(sig)
            scratch = None
            if size:
                name = f"scratch of {node.name}"
                scratch = self._tensor(name, np.dtype(np.uint8), (size,), Usage.SCRATCH)
            own = {o: weights[n] for o, n in node.operands.items() if n in weights}
            prepared = kernel.prepare(sig.static(), own)
            bound = {o: tensors[n] for o, n in node.operands.items() if n in tensors}
            self.steps.append(kernel.bind(sig, bound, prepared, scratch))

    def _tensor(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], usage: Usage
    ) -> Tensor:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        # whole words, so that the surroundings' pattern is in step on both sides
        room = -(-nbytes // 4) * 4
        self.buffers[name] = self.device.alloc(self.lead + room + self.guard, usage)
        return Tensor(self.buffers[name], dtype, shape, self.lead)


def note(operand: str, text: str) -> Mismatch:
    """Return a mismatch that no number describes."""
    return Mismatch(operand, (), np.nan, np.nan, 0.0, text)


def _is_output(spec: OpSpec, name: str) -> bool:
    return spec.operand(name).role is Role.OUTPUT


def _refusal(device: Device, sig: Signature) -> str:
    kernel = device.kernels.get(sig.op)
    if kernel is None:
        return f"{device.name} has no kernel for {sig.op}"
    return kernel.supports(sig)


def _declined(device: Device, case: Case, precision: Precision, reasons: Sequence[str]) -> Declined:
    return Declined(
        what=f"{device.name} was to run {case.id} in {precision.value}",
        evidence="; ".join(reasons),
        fix="let the plan place this op on the host, or choose other sizes",
    )
