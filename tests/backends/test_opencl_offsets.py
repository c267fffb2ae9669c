"""Places past 2^31 numbers or bytes: the bits are those of the same operands near the start.

The far buffers are not filled, so that PoCL takes memory only for what is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clover_rt.backend import Tensor
from clover_rt.buffers import Part
from clover_rt.ops import OPS
from clover_rt.plan.case_run import filled, signature, typed
from clover_rt.spec import Case, HostWeight, Precision, Signature, Weight
from clover_rt_conformance.bound import Bound
from tests.backends.opencl_devices import PLAIN_DOT, opencl_device

FAR = 1 << 31
pytestmark = pytest.mark.full


@pytest.fixture
def device() -> Iterator[Any]:
    handle = opencl_device()
    from clover_rt_rocm.opencl.capabilities import Capabilities
    from clover_rt_rocm.opencl.device import ClDevice

    opened = ClDevice(handle, capabilities=Capabilities(int_dot=PLAIN_DOT))
    yield opened
    opened.close()


def case_of(name: str) -> Case:
    return next(c for c in OPS[name.partition("/")[0]].cases() if c.id == name)


def unfilled(device: Any, nbytes: int) -> Any:
    """Return a buffer whose memory is not touched."""
    import pyopencl as cl

    from clover_rt_rocm.opencl.device import ClBuffer

    return ClBuffer(nbytes, cl.Buffer(device.context, cl.mem_flags.READ_WRITE, nbytes + 64))


def run(
    device: Any,
    sig: Signature,
    operands: Mapping[str, np.ndarray],
    starts: Mapping[str, int],
    prepared: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Run a kernel once and return every operand afterwards.

    starts  numbers in front of each operand that is far
    """
    tensors = {}
    for name, array in operands.items():
        start = starts.get(name, 0) * array.itemsize
        tensors[name] = Tensor(unfilled(device, start + array.nbytes), array.dtype, array.shape)
        device.upload(tensors[name].buffer, start, np.ascontiguousarray(array))
    kernel = device.kernels[sig.op]
    size = kernel.scratch(sig)
    scratch = Tensor(unfilled(device, size), np.dtype(np.uint8), (size,)) if size else None
    kernel.bind(sig, tensors, prepared, scratch)()
    after = {name: np.empty_like(array, order="C") for name, array in operands.items()}
    for name, array in after.items():
        device.download(tensors[name].buffer, starts.get(name, 0) * array.itemsize, array)
    return after


def check_states(
    device: Any,
    name: str,
    precision: Precision,
    starts: Mapping[str, int],
    move: Callable[[dict[str, np.ndarray]], None],
) -> None:
    """Check that a case writes the same with far operands; `move` makes the others point there."""
    case, spec = case_of(name), OPS[name.partition("/")[0]]
    dtypes = device.dtypes(precision)
    inputs = typed(spec, case.inputs(0), dtypes)
    with Bound(device, spec, case, precision, inputs) as bound:
        near = bound.run()
    operands = filled(spec, case, inputs, dtypes)
    move(operands)
    far = run(device, signature(spec, case, dtypes, precision), operands, starts, {})
    for operand in (o.name for o in spec.operands if o.is_written):
        assert near[operand].tobytes() == far[operand].tobytes(), operand


@pytest.mark.parametrize("name", ["kv_append/four-sequences", "attend/H=8,K=256/x1/commit65@63"])
def test_pages_past_2_31_numbers_hold_what_nearer_ones_hold(device: Any, name: str) -> None:
    axes = case_of(name).axes
    page = 64 * axes["G"] * axes["K"]
    pages = FAR // page + 1

    def move(operands: dict[str, np.ndarray]) -> None:
        operands["page_table"] = operands["page_table"] + np.int32(pages)

    starts = dict.fromkeys(("k_pool", "v_pool"), pages * page)
    check_states(device, name, Precision.FAST, starts, move)


def test_memory_past_4_gib_is_that_of_its_slot(device: Any) -> None:
    """2^31 float32 numbers exceed PoCL's largest buffer, so this is 2^30 and a bit."""
    name = "block_scan/H=2,K=128,V=128/four-sequences"
    case = case_of(name)
    sizes = {
        o.name: int(np.prod(OPS["block_scan"].shape(o.name, case.axes)[1:]))
        for o in OPS["block_scan"].operands
        if o.name == "S" or o.name.startswith("tape")
    }
    slots = (1 << 30) // sizes["S"] + 1

    def move(operands: dict[str, np.ndarray]) -> None:
        words = operands["params"].reshape(-1).view(np.int32)
        at, count = case.layout.sections["segments"][0] // 4, int(words[2])
        words[at + 1 : at + 8 * count : 8] += slots

    starts = {n: slots * size for n, size in sizes.items()}
    check_states(device, name, Precision.EXACT, starts, move)


@pytest.mark.parametrize(
    ("fmt", "precision", "most_few"),
    [
        pytest.param("q4-32", Precision.EXACT, 64, id="q4, few rows"),
        pytest.param("q4-32", Precision.EXACT, 0, id="q4, many rows"),
        pytest.param("q4-32", Precision.FAST, 0, id="q4, rounded rows"),
        pytest.param("q8", Precision.FAST, 0, id="q8, rounded rows"),
        pytest.param("bf16", Precision.EXACT, 64, id="bf16, few rows"),
    ],
)
def test_an_expert_past_2_31_is_as_right_as_a_near_one(
    device: Any, fmt: str, precision: Precision, most_few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of so many that the codes of those before fill 2^31 bytes, or numbers of bf16."""
    from clover_rt_rocm.opencl.kernels import expert_gemm as chosen
    from clover_rt_rocm.opencl.weights import Matrix

    monkeypatch.setattr(chosen, "MOST_FEW", most_few)
    case, spec = case_of(f"expert_gemm/{fmt}/T=7/last-expert"), OPS["expert_gemm"]
    dtypes = device.dtypes(precision)
    inputs = typed(spec, case.inputs(0), dtypes)
    with Bound(device, spec, case, precision, inputs) as bound:
        near = bound.run()["y"]
    code_bytes = inputs["gate"].codes[0].nbytes
    before = FAR * (2 if fmt == "bf16" else 1) // code_bytes + 1
    sig = signature(spec, case, dtypes, precision)
    sig = replace(sig, axes=tuple((n, before + 1 if n == "E" else a) for n, a in sig.axes))

    def alone(weight: Weight, name: str) -> Matrix:
        """Return a weight whose last expert is the case's, behind others that nobody reads."""
        buffers = {}
        for field in ("codes", "scale", "zero"):
            array = getattr(weight, field)
            if array is not None:
                last = np.ascontiguousarray(array[-1])
                buffers[field] = unfilled(device, (before + 1) * last.nbytes)
                device.upload(buffers[field], before * last.nbytes, last)
        return Matrix(
            weight.format, HostWeight.of(weight, name).group, (Part(0, before + 1, buffers),)
        )

    prepared = {n: alone(inputs[n], n) for n in ("gate", "up", "down")}
    operands = filled(spec, case, inputs, dtypes)
    pairs = operands["offsets"][-1]
    operands["offsets"] = np.zeros(before + 2, np.int32)
    operands["offsets"][-1] = pairs
    assert run(device, sig, operands, {}, prepared)["y"].tobytes() == near.tobytes()
