"""Record layers of a small model on a card, replay them, and compare: run in a child process.

    python -m clover_rt_rocm.hip.trial hip:0

The exit code is 0 where every replay gave the bytes that the launches one by one give, and 75 where
the card had no memory to try. A crash or a hang ends this process and no other. It ends where its
stdin does, which whoever started it holds open.
"""

from __future__ import annotations

import os
import sys
from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from clover_rt.backend import Buffer, Device, Tensor, Usage
from clover_rt.errors import OutOfMemory
from clover_rt.ops import OPS
from clover_rt.spec import (
    Case,
    DType,
    HostWeight,
    OpSpec,
    Precision,
    Role,
    Signature,
    StepParams,
    Weight,
)
from clover_rt_rocm.hip import find
from clover_rt_rocm.hip.recording import NO_MEMORY

Array = npt.NDArray[Any]
TRIED = (
    *(("gdn", Precision.EXACT), ("attention", Precision.EXACT), ("moe", Precision.EXACT)),
    *(("attention", Precision.FAST), ("moe", Precision.FAST)),
)
"""Both mixers, which hold what has crashed, and the experts; and one layer whose products and cache
are bfloat16, since other instructions make those."""
REPLAYS = 3


def main(argv: list[str]) -> int:
    """Try one card; what differs is told on stderr."""
    from clover_rt_rocm.hip.device import HipDevice

    info = next(d for d in find.cards().devices if d.id == argv[0])
    try:
        problem = differs(HipDevice(info, records=True))
    except OutOfMemory as error:
        print(f"{error.what}; {error.evidence}", file=sys.stderr)
        return NO_MEMORY
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


def end_with_stdin() -> None:
    """Let this process end at the end of its stdin: a killed program leaves no trial behind."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        # what may hang cannot be asked to stop
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def differs(device: Device) -> str:
    """Return which layer op is not the same when it is replayed, "" for none."""
    for op, precision in TRIED:
        spec = OPS[op]
        case = max(spec.cases(), key=lambda c: c.axes["T"] * c.table.has_preview)
        right = Bound(device, spec, case, precision)
        plain = right.run(right.step)
        recorded = device.capture([right.step])
        for i in range(REPLAYS):
            after = right.run(recorded)
            wrong = [name for name in plain if plain[name].tobytes() != after[name].tobytes()]
            if wrong:
                return (
                    f"{case.id} in {precision.value}: {', '.join(wrong)} of replay {i + 1} differ"
                )
    return ""


class Bound:
    """A layer op of a case, bound to memory of its own."""

    def __init__(self, device: Device, spec: OpSpec, case: Case, precision: Precision) -> None:
        self.device = device
        inputs = case.inputs()
        cache = device.dtypes(precision)[1]
        self.sig = sig = _signature(spec, case, inputs, precision, cache)
        self.before: dict[str, Array] = {}
        self.buffers: dict[str, Buffer] = {}
        tensors = {}
        for o in spec.operands:
            value = inputs.get(o.name)
            if isinstance(value, Weight) or (value is None and o.role is not Role.OUTPUT):
                continue
            if isinstance(value, StepParams):
                array = value.buffer
            elif value is None:
                array = np.zeros(spec.shape(o.name, case.axes), np.float32)
            elif o.dtype is DType.KV and cache == "bfloat16":
                array = value.astype(ml_dtypes.bfloat16)
            else:
                array = np.ascontiguousarray(value)
            usage = Usage.PARAMS if o.role is Role.PARAMS else Usage.STATE
            self.before[o.name] = array
            self.buffers[o.name] = device.alloc(max(array.nbytes, 1), usage)
            tensors[o.name] = Tensor(self.buffers[o.name], array.dtype, array.shape)
        kernel = device.kernels[spec.name]
        refused = kernel.supports(sig)
        assert not refused, refused
        weights = {n: HostWeight.of(w, n) for n, w in inputs.items() if isinstance(w, Weight)}
        need = kernel.scratch(sig)
        scratch = None
        if need:
            memory = device.alloc(need, Usage.SCRATCH)
            scratch = Tensor(memory, np.dtype(np.uint8), (need,))
        prepared = kernel.prepare(sig.static(), weights)
        self.step = kernel.bind(sig, tensors, prepared, scratch)

    def run(self, step: Any) -> dict[str, Array]:
        """Run a step from the case's inputs; return every operand as it is afterwards."""
        for name, array in self.before.items():
            self.device.upload(self.buffers[name], 0, array)
        step()
        self.device.synchronize()
        after = {name: np.empty_like(array) for name, array in self.before.items()}
        for name, array in after.items():
            self.device.download(self.buffers[name], 0, array)
        return after


def _signature(
    spec: OpSpec, case: Case, inputs: dict[str, Any], precision: Precision, cache: str
) -> Signature:
    """Return what a kernel is asked about a case, with a KV cache of this type."""
    types = {DType.EDGE: "float32", DType.KV: cache}
    dtypes, formats = [], []
    for o in spec.operands:
        value = inputs.get(o.name)
        if isinstance(value, Weight):
            formats.append((o.name, value.format, value.group))
        elif o.role is not Role.PARAMS and (value is not None or o.role is Role.OUTPUT):
            dtypes.append((o.name, types.get(o.dtype, o.dtype.value)))
    capacity = {"W": 1, "L": 64 * case.axes.get("slot_pages", 0)}
    return Signature(
        spec.name,
        case.table,
        precision,
        tuple(sorted({**capacity, **case.axes}.items())),
        tuple(dtypes),
        tuple(formats),
        tuple(sorted(case.attrs.items())),
        case.layout,
    )


if __name__ == "__main__":
    end_with_stdin()
    sys.exit(main(sys.argv[1:]))
