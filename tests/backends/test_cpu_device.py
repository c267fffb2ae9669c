"""The cpu device: its memory, its refusals, and how a plugin finds it."""

from __future__ import annotations

import numpy as np
import pluggy
import pytest

import clover_rt_cpu
from clover_rt import hookspecs
from clover_rt.backend import Device, Usage
from clover_rt.errors import CloverError, OutOfMemory
from clover_rt.ops import causal_conv, confidence_topk, linear
from clover_rt.spec import Case, Precision, Signature, StepLayout, TableClass
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.kernels import TYPES


def sig(op: str, dtypes: dict[str, str], axes: dict[str, int], **attrs: int) -> Signature:
    return Signature(
        op,
        TableClass.PREVIEW,
        Precision.EXACT,
        tuple(axes.items()),
        tuple(dtypes.items()),
        (),
        tuple(attrs.items()),
        StepLayout(),
    )


def test_the_hook_returns_a_backend_that_finds_one_device() -> None:
    manager = pluggy.PluginManager("clover_rt")
    manager.add_hookspecs(hookspecs)
    manager.register(clover_rt_cpu)
    (found,) = manager.hook.clover_rt_backends()
    (backend,) = found
    probe = backend.probe()
    assert backend.name == "cpu"
    assert not probe.problem
    assert [info.id for info in probe.devices] == ["cpu"]
    assert set(backend.open(probe.devices[0]).kernels) == set(TYPES)


def test_new_memory_is_zero_aligned_and_keeps_what_is_uploaded(device: Device) -> None:
    buffer = device.alloc(1000, Usage.EDGE)
    assert buffer.array.ctypes.data % device.alignment == 0
    out = np.full(1000, 7, np.uint8)
    device.download(buffer, 0, out)
    assert not out.any()
    device.upload(buffer, 8, np.arange(5, dtype=np.float32))
    device.copy(buffer, 100, buffer, 8, 20)
    back = np.empty(5, np.float32)
    device.download(buffer, 100, back)
    assert back.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (61, 1), (64, 1), (0, 17)])
def test_a_copy_past_the_buffer_names_both_sizes(device: Device, offset: int, count: int) -> None:
    buffer = device.alloc(64, Usage.EDGE)
    with pytest.raises(CloverError, match="the buffer has 64 bytes") as caught:
        device.upload(buffer, offset, np.zeros(count, np.float32))
    assert caught.value.code == "CRT-9030"
    with pytest.raises(CloverError):
        device.download(buffer, offset, np.zeros(count, np.float32))


def test_more_memory_than_there_is_gives_both_numbers(device: Device) -> None:
    with pytest.raises(OutOfMemory, match=str(1 << 60)) as caught:
        device.alloc(1 << 60, Usage.STATE)
    assert any(c.isdigit() for c in caught.value.evidence)


def test_exact_keeps_float32_and_fast_halves_the_cache(device: Device) -> None:
    assert device.dtypes(Precision.EXACT) == ("float32", "float32")
    assert device.dtypes(Precision.FAST) == ("float32", "bfloat16")


def test_a_refusal_names_what_was_asked_and_what_is_there(device: Device) -> None:
    rows = sig(linear.SPEC.name, {"x": "bfloat16"}, {"T": 1})
    assert "x is bfloat16" in device.kernels["linear"].supports(rows)
    tall = sig(confidence_topk.SPEC.name, {}, {"vocab": 60}, top=64)
    assert "top=64 exceeds the 60 ids" in device.kernels["confidence_topk"].supports(tall)
    bare = sig(causal_conv.SPEC.name, {"u": "float32"}, {"C": 8})
    assert "0 right taps" in device.kernels["causal_conv"].supports(bare)


def test_numpy_products_of_pieces_equal_those_of_a_whole_weight() -> None:
    """A weight that lies in pieces of odd heights is joined, and gives the whole weight's bits."""
    device = CpuDevice(isa="numpy")
    from clover_rt.spec import HostWeight

    (case,) = [c for c in linear.SPEC.cases() if c.id == "linear/q4-32/T=7,N=63,K=192"]
    whole = case.inputs()["w"]
    pieces = (whole[0:5], whole[5:40], whole[40:63])
    split = HostWeight("w", whole.format, whole.shape, pieces, whole.group)
    kernel = device.kernels["linear"]
    static = _static(case)
    joined = kernel.prepare(static, {"w": split})
    alone = kernel.prepare(static, {"w": HostWeight.of(whole)})
    for a, b in zip(joined, alone, strict=True):
        assert (a.lo, a.hi, a.first) == (b.lo, b.hi, b.first)
        assert np.array_equal(a.weight.values(), b.weight.values())


def _static(case: Case) -> Signature:
    axes = {name: n for name, n in case.axes.items() if name != "T"}
    return sig("linear", {}, axes)
