"""A layer takes at most ten dispatches: counted in what a driver is given to record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from clover_rt.backend import Step, Tensor, Usage
from clover_rt.ops import OPS
from clover_rt.spec import (
    DType,
    Format,
    HostWeight,
    Node,
    Precision,
    Role,
    Signature,
    StepLayout,
    TableClass,
    Weight,
)
from clover_rt_vulkan.device import VulkanDevice
from clover_rt_vulkan.driver import Counts, Dispatch, Driver, Limits

MOST = 10
# heads and cache of the 35B release, whose prefix of 32,768 rows is split; narrower products
WIDTH = {"D": 256}
MEMORY = {"G": 2, "H": 4, "K": 128, "V": 128, "C": 1024, "J": 4, "slots": 2, "Q": 32}
CACHE = {"H": 16, "G": 2, "K": 256, "r": 32, "P": 131328, "slots": 2, "slot_pages": 512}
EXPERTS = {"E": 32, "R": 8, "F": 64, "Fs": 64, "segments": 64}
LAYER_AXES = {
    "gdn": WIDTH | MEMORY,
    "attention": WIDTH | CACHE | {"pages": 1024},
    "moe": WIDTH | EXPERTS,
}
ATTRS = {"gdn": {"eps": 1e-6}, "attention": {"eps": 1e-6}, "moe": {"eps": 1e-6, "top_p": 0.8}}
# what a quantised checkpoint keeps in bfloat16
PLAIN = ("a", "b", "router", "shared_scale")
ROWS = (1, 2, 32, 64)


class Counter(Driver):
    """A desktop card without memory: it keeps what it is given to record, and runs nothing."""

    def __init__(self) -> None:
        groups = (65535, 65535, 65535)
        self.limits = Limits(64, 1 << 32, 1 << 32, 16, 128, 32 << 10, 256, groups, 32)
        self.features = frozenset({"int8_dot"})
        self.counts = Counts()
        self.recorded: list[Dispatch] = []

    def buffer(self, nbytes: int) -> Any:
        return object()

    def memory(self) -> tuple[int, int]:
        return 1 << 34, 1 << 34

    def upload(self, memory: Any, offset: int, data: Any) -> None: ...

    def download(self, memory: Any, offset: int, data: Any) -> None: ...

    def copy(self, dst: Any, dst_offset: int, src: Any, src_offset: int, n: int) -> None: ...

    def pipeline(self, code: bytes, shape: Any, constants: Mapping[int, int]) -> Any:
        return code

    def record(self, dispatches: Sequence[Dispatch], *_: Any) -> Any:
        self.recorded = list(dispatches)
        return self.recorded

    def submit(self, recording: Any) -> None: ...

    def wait(self) -> None: ...

    def times(self, recording: Any) -> list[float]:
        return []

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def device() -> Iterator[VulkanDevice]:
    yield VulkanDevice("counter", Counter())


def node_of(op: str) -> Node:
    operands = {o.name: o.name for o in OPS[op].operands}
    return Node(op, op, operands, LAYER_AXES[op], ATTRS[op])


def signature(
    node: Node, rows: int, table: TableClass, precision: Precision, storage: str
) -> Signature:
    """Return a signature whose weights are q4 but for PLAIN ones, or all bf16."""
    spec = OPS[node.op]
    kv = "bfloat16" if precision is Precision.FAST else "float32"
    types = {DType.EDGE: "float32", DType.KV: kv}
    dtypes, formats = [], []
    for o in spec.operands:
        if o.name not in node.operands:
            continue
        if o.role is Role.WEIGHT:
            fits = storage == "q4" and spec.shape(o.name, dict(node.axes))[-1] % 64 == 0
            is_plain = not fits or node.operands[o.name] in PLAIN
            formats.append((o.name, *((Format.BF16, 0) if is_plain else (Format.Q4, 64))))
        elif o.role is not Role.PARAMS:
            dtypes.append((o.name, types.get(o.dtype, o.dtype.value)))
    return Signature(
        node.op,
        table,
        precision,
        tuple(sorted({**node.axes, "T": rows}.items())),
        tuple(dtypes),
        tuple(formats),
        tuple(sorted(node.attrs.items())),
        StepLayout(),
    )


def zeros(name: str, fmt: Format, group: int, shape: tuple[int, ...]) -> HostWeight:
    """Return a weight of zeros."""
    wide = (*shape[:-1], shape[-1] // 2) if fmt is Format.Q4 else shape
    groups = (*shape[:-1], shape[-1] // group) if group else ()
    scale = np.zeros(groups, np.float16) if group else None
    weight = Weight(fmt, shape, np.zeros(wide, fmt.codes_dtype), scale, None, group)
    return HostWeight.of(weight, name)


def step_of(device: VulkanDevice, sig: Signature) -> Step:
    """Return a signature's step on buffers that nobody reads."""
    spec, kernel, axes = OPS[sig.op], device.kernels[sig.op], dict(sig.axes)
    assert kernel.supports(sig) == ""
    operands = {}
    for o in spec.operands:
        if o.role is Role.PARAMS:
            operands[o.name] = tensor(device, (sig.layout.nbytes,), np.dtype(np.uint8))
        elif sig.has(o.name) and o.role is not Role.WEIGHT:
            operands[o.name] = tensor(device, spec.shape(o.name, axes), sig.dtype(o.name))
    weights = {n: zeros(n, fmt, group, spec.shape(n, axes)) for n, fmt, group in sig.formats}
    scratch = tensor(device, (kernel.scratch(sig),), np.dtype(np.uint8))
    return kernel.bind(sig, operands, kernel.prepare(sig.static(), weights), scratch)


def tensor(device: VulkanDevice, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    count = int(np.prod(shape)) * dtype.itemsize
    return Tensor(device.alloc(count, Usage.EDGE), dtype, shape)


def taken(device: VulkanDevice, steps: Sequence[Step]) -> int:
    """Return the dispatches of a pass of these steps, as the driver is given them."""
    assert isinstance(device.driver, Counter)
    device.driver.recorded = []
    device.capture(steps)()
    assert device.driver.recorded
    return len(device.driver.recorded)


def layer(
    device: VulkanDevice,
    mixer: str,
    rows: int,
    table: TableClass,
    precision: Precision = Precision.EXACT,
    storage: str = "q4",
) -> list[Step]:
    """Return the steps of a mixer and the experts behind it."""
    nodes = [node_of(mixer), node_of("moe")]
    return [step_of(device, signature(n, rows, table, precision, storage)) for n in nodes]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("table", TableClass, ids=lambda t: t.value)
@pytest.mark.parametrize("mixer", ["gdn", "attention"])
def test_a_layer_takes_ten_dispatches_at_most(
    device: VulkanDevice, mixer: str, table: TableClass, rows: int
) -> None:
    """Of every table class; attention over a prefix that is split."""
    assert taken(device, layer(device, mixer, rows, table)) <= MOST


@pytest.mark.parametrize("storage", ["q4", "bf16"])
@pytest.mark.parametrize("precision", Precision, ids=lambda p: p.value)
def test_neither_precision_nor_format_costs_a_dispatch(
    device: VulkanDevice, precision: Precision, storage: str
) -> None:
    for mixer in ("gdn", "attention"):
        steps = layer(device, mixer, 32, TableClass.MIXED, precision, storage)
        assert taken(device, steps) <= MOST, mixer


def test_a_split_prefix_is_added_up_by_one_dispatch_and_a_short_one_by_none(
    device: VulkanDevice,
) -> None:
    long = node_of("attention")
    short = Node(long.name, long.op, long.operands, {**long.axes, "slot_pages": 1}, long.attrs)
    found = [
        taken(device, [step_of(device, signature(n, 1, TableClass.COMMIT, Precision.EXACT, "q4"))])
        for n in (long, short)
    ]
    assert found == [5, 4]


def test_a_weight_in_parts_takes_one_more_a_part(device: VulkanDevice) -> None:
    """Half of the experts' gates and ups fit a buffer, and all of everything else."""
    sig = signature(node_of("moe"), 2, TableClass.COMMIT, Precision.EXACT, "bf16")
    whole = taken(device, [step_of(device, sig)])
    limit = device.max_binding_bytes
    device.max_binding_bytes = 2 * EXPERTS["E"] * EXPERTS["F"] * WIDTH["D"] * 2 // 2
    parted = taken(device, [step_of(device, sig)])
    device.max_binding_bytes = limit
    assert parted == whole + 1
