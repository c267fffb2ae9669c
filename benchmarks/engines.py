"""The release bound to the kernels of each backend without a card: steps, launches, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from clover_rt.backend import Device, Usage
from clover_rt.bench.traffic import Traffic, traffic
from clover_rt.fit import capacity_for
from clover_rt.fit.counting import CountingDevice
from clover_rt.fit.weights import MATRICES
from clover_rt.model.build import build_graph
from clover_rt.model.config import ModelConfig
from clover_rt.ops import OPS
from clover_rt.plan import Plan, bind
from clover_rt.plugins import open_device
from clover_rt.quantise.rules import FINE
from clover_rt.spec import Format, HostWeight, Numerics, Precision, TableClass, Weight

# what cards have in common: bytes of a buffer and of a group's memory, groups along each axis
LARGEST_BUFFER, LOCAL = 4 << 30, 64 << 10
GRID = ((1 << 31) - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class Load:
    """A pass over one sequence: rows, rows whose logits are wanted, distinct experts a layer.

    depth  tokens in the KV cache before it
    """

    name: str
    table: TableClass
    rows: int
    wanted: int
    experts: int
    depth: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pass: the layer op that it belongs to, its launches, bytes and operations.

    is_int8  its products are of rows rounded to 8 bits
    """

    op: str
    launches: int
    moved: Traffic
    flops: float
    is_int8: bool = False


class Engine:
    """Kernels that bind as for a card; `launches` counts those of a step behind a prefix."""

    name: str
    device: Any

    def launches(self, step: Any, prefix: int) -> int:
        return 1

    def close(self) -> None:
        return None


class CpuEngine(Engine):
    """The cpu backend's kernels; a launch is a step that its threads walk to."""

    name = "cpu"

    def __init__(self) -> None:
        self._real: Device = open_device("cpu")[1]
        self.device = CountingDevice(self._real)

    def close(self) -> None:
        self._real.close()


class TritonEngine(Engine):
    """The Triton kernels, of cuda by their place."""

    name = "triton"

    def __init__(self) -> None:
        from clover_rt_cuda.ahead import Recorder

        self.device = Recorder()

    def launches(self, step: Any, prefix: int) -> int:
        return len(step.launches(prefix))


class OpenClEngine(Engine):
    """The OpenCL kernels of rocm, on a device that neither compiles nor holds anything."""

    name = "opencl"

    def __init__(self) -> None:
        from clover_rt_rocm.opencl.capabilities import Capabilities
        from clover_rt_rocm.opencl.device import ClBuffer, ClDevice
        from clover_rt_rocm.opencl.kernels import make_kernels

        class Unreal(ClDevice):
            # as AMD's cards have them; the text is never compiled
            capabilities = Capabilities(int_dot="told", subgroups="told")

            def __init__(self) -> None:
                self.name = "opencl"
                self.alignment = 256
                self.max_binding_bytes = LARGEST_BUFFER
                self.handle = SimpleNamespace(local_mem_size=LOCAL, global_mem_size=1 << 50)
                self.used = 0
                self.kernels = make_kernels(self)

            def allocate(self, nbytes: int, what: str, usage: Usage | None = None) -> ClBuffer:
                return ClBuffer(nbytes, None)

            def upload(self, dst: Any, offset: int, src: Any) -> None:
                return None

            def view(self, tensor: Any) -> None:
                return None

        self.device = Unreal()

    def launches(self, step: Any, prefix: int) -> int:
        return len(step.launches)


class VulkanEngine(Engine):
    """The shaders of vulkan, behind a driver that does nothing."""

    name = "vulkan"

    def __init__(self) -> None:
        from clover_rt_vulkan.device import VulkanDevice
        from clover_rt_vulkan.driver import Driver, Limits

        def nothing(*given: Any) -> Any:
            return None

        unreal = type("Unreal", (Driver,), dict.fromkeys(Driver.__abstractmethods__, nothing))
        unreal.limits = Limits(256, LARGEST_BUFFER, LARGEST_BUFFER, 16, 128, LOCAL, 1024, GRID, 32)
        unreal.features = frozenset()
        self.device = VulkanDevice("vulkan", unreal())

    def launches(self, step: Any, prefix: int) -> int:
        return len(step.dispatches)


ENGINES: Mapping[str, type[Engine]] = {
    kind.name: kind for kind in (CpuEngine, TritonEngine, OpenClEngine, VulkanEngine)
}


def plan_of(
    engine: Engine, config: ModelConfig, weights: Mapping[str, HostWeight], context: int
) -> Plan:
    """Return the plan of a model in `fast`; nothing of it runs on the host."""
    capacity = capacity_for(config, 2, context)
    return bind(
        build_graph(config, weights, capacity),
        engine.device,
        None,
        layout=capacity.layout,
        context=context,
        precision=Precision.FAST,
    )


def steps_of(plan: Plan, load: Load, engine: Engine) -> list[Step]:
    """Return the steps of a pass."""
    ops = {node.name: node.op for node in plan.graph.nodes}
    live = {"T": load.rows, "W": load.wanted, "L": load.depth, "experts": load.experts}
    out = []
    for action in plan.program(load.table, load.rows).actions:
        node, sig = action.node, action.sig
        assert node is not None and sig is not None, "a plan on one device moves nothing"
        kernel = plan.placement.choices[node.name].kernel
        # scratch memory is written once and read once at least
        scratch = 2.0 * kernel.scratch(sig)
        moved = traffic(sig, live) + Traffic(activations=scratch)
        flops = OPS[sig.op].work(sig, live).flops
        count = engine.launches(action.step, load.depth)
        is_int8 = kernel.numerics(sig) is Numerics.INT8_G32
        out.append(Step(ops[node.layer], count, moved, flops, is_int8))
    return out


def as_stored(weights: Mapping[str, HostWeight], form: Format, group: int) -> dict[str, HostWeight]:
    """Return weights as `clover-rt quantize` stores them, but without data."""
    out = {}
    for name, weight in weights.items():
        last = name.rsplit(".", 1)[-1]
        out[name] = weight
        if last in MATRICES and form.is_quantised:
            out[name] = _empty(weight, Format.Q8 if last in FINE else form, group, name)
    return out


def _empty(weight: HostWeight, form: Format, group: int, name: str) -> HostWeight:
    """Return a weight whose numbers are one zero, seen from everywhere."""
    *lead, k = weight.shape
    size, columns = (group, k // 2) if form is Format.Q4 else (32, k)
    codes = np.broadcast_to(np.zeros((), form.codes_dtype), (*lead, columns))
    scale = np.broadcast_to(np.zeros((), np.float16), (*lead, k // size))
    return HostWeight.of(Weight(form, weight.shape, codes, scale, None, size), name)
