"""The OpenCL device: memory, errors, compiled programs and their cache, one wait a pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clover_rt.backend import Usage
from clover_rt.errors import CloverError, CompileError, DeviceLost, OutOfMemory
from clover_rt.ops import OPS
from clover_rt.spec import Case, Format, HostWeight, Precision, Weight
from clover_rt_conformance.bound import Bound
from tests.backends.opencl_devices import opencl_device

GOOD = "kernel void seven(global int *to) { to[0] = 7; }\n"


@pytest.fixture(scope="module")
def handle() -> Any:
    return opencl_device()


@pytest.fixture
def device(handle: Any) -> Iterator[Any]:
    from clover_rt_rocm.opencl.device import ClDevice

    opened = ClDevice(handle)
    yield opened
    opened.close()


def case_of(name: str) -> Case:
    return next(c for c in OPS[name.partition("/")[0]].cases() if c.id == name)


def outputs(device: Any, case: Case, inputs: Any) -> dict[str, np.ndarray]:
    spec = OPS[case.op]
    with Bound(device, spec, case, Precision.EXACT, inputs) as bound:
        after = bound.run()
    return {o.name: after[o.name] for o in spec.outputs}


def test_new_memory_is_zero_and_keeps_what_is_uploaded(device: Any) -> None:
    buffer = device.alloc(1001, Usage.STATE)
    out = np.full(1001, 7, np.uint8)
    device.download(buffer, 0, out)
    assert not out.any()
    sent = np.arange(5, dtype=np.float32)
    device.upload(buffer, 9, sent)
    # the upload has its own copy
    sent[:] = -1
    device.copy(buffer, 101, buffer, 9, 20)
    back = np.empty(5, np.float32)
    device.download(buffer, 101, back)
    assert back.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (61, 1), (64, 1), (0, 17)])
def test_a_copy_past_the_buffer_names_both_sizes(device: Any, offset: int, count: int) -> None:
    buffer = device.alloc(64, Usage.EDGE)
    with pytest.raises(CloverError, match="the buffer has 64 bytes"):
        device.upload(buffer, offset, np.zeros(count, np.float32))
    with pytest.raises(CloverError, match="the buffer has 64 bytes"):
        device.download(buffer, offset, np.zeros(count, np.float32))


def test_more_memory_than_there_is_gives_all_numbers_and_remedies(device: Any) -> None:
    with pytest.raises(OutOfMemory, match=f"requested {1 << 60} bytes, free") as caught:
        device.alloc(1 << 60, Usage.STATE)
    assert str(device.max_binding_bytes) in caught.value.evidence
    assert all(word in caught.value.fix for word in ("--context", "--precision fast", "quantize"))


def test_a_weight_that_does_not_fit_is_named(handle: Any) -> None:
    from clover_rt_rocm.opencl.device import ClDevice
    from clover_rt_rocm.opencl.weights import matrices

    zeros = Weight(Format.F32, (3, 1 << 14), np.zeros((3, 1 << 14), np.float32))
    wide = HostWeight.of(zeros, "layers.0.mlp.gate")
    small = ClDevice(handle, largest=24 << 10)
    with pytest.raises(OutOfMemory, match=r"layers\.0\.mlp\.gate was to be copied"):
        matrices(small, {"w": wide})
    small.close()


def test_what_is_freed_is_free_again(device: Any) -> None:
    before = device.memory().free
    buffer = device.alloc(1 << 20, Usage.EDGE)
    assert before - device.memory().free == 1 << 20
    device.free(buffer)
    assert device.memory().free == before


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        # an expert's matrix has 32 KiB, and parts of the head go by 128 ids
        ("expert_gemm/f32/T=33/spread", 72 << 10),
        ("linear/f32/T=7,N=63,K=192", 40 << 10),
        ("confidence_topk/bf16/top=8/last-row/vocab=66000", 1 << 20),
        ("embed_rows/f32/T=33", 10 << 10),
    ],
)
def test_a_weight_in_parts_gives_the_bits_of_a_whole_one(
    device: Any, name: str, largest: int
) -> None:
    case = case_of(name)
    inputs = case.inputs(0)
    whole = outputs(device, case, inputs)
    kernel, limit, made = device.kernels[case.op], device.max_binding_bytes, []
    prepare = kernel.prepare

    def prepared_small(*given: Any) -> Any:
        device.max_binding_bytes = largest
        made.append(prepare(*given))
        device.max_binding_bytes = limit
        return made[-1]

    kernel.prepare = prepared_small
    split = outputs(device, case, inputs)
    found = made[0]["gate"] if case.op == "expert_gemm" else made[0]
    assert len(found.parts) > 1
    for key, array in whole.items():
        assert array.tobytes() == split[key].tobytes(), key


def test_pieces_of_a_mapped_file_lie_one_behind_the_other(device: Any) -> None:
    """Pieces of odd heights, and one with zero points beside one without."""
    from clover_rt_rocm.opencl.weights import matrices

    whole = case_of("linear/q4-32/T=7,N=63,K=192").inputs(0)["w"]
    assert whole.zero is not None
    plain = Weight(whole.format, (5, 192), whole.codes[:5], whole.scale[:5], None, whole.group)
    split = HostWeight("w", whole.format, whole.shape, (plain, whole[5:40], whole[40:]), 32)
    (part,) = matrices(device, {"w": split})["w"].parts
    for field, want in (("codes", whole.codes), ("scale", whole.scale), ("zero", whole.zero)):
        got = np.empty_like(want)
        device.download(part.buffers[field], 0, got)
        want = want.copy()
        if field == "zero":
            want[:5] = 8
        assert np.array_equal(got, want), field


def test_a_kernel_that_does_not_compile_shows_the_compilers_log(device: Any) -> None:
    with pytest.raises(CompileError, match="undeclared_name") as caught:
        device.programs.kernel("kernel void f(global int *a) { a[0] = undeclared_name; }\n", "f")
    assert caught.value.code == "CRT-3500"
    assert "kernel f did not compile" in caught.value.what


def test_a_program_is_compiled_once_and_then_read_from_disk(device: Any, tmp_path: Path) -> None:
    from clover_rt_rocm.opencl.program import Programs

    def ask(source: str = GOOD) -> int:
        programs = Programs(device.context, device.handle, tmp_path / "opencl")
        programs.kernel(source, "seven")
        programs.kernel(source, "seven")
        return programs.compiled

    assert ask() == 1
    assert ask() == 0
    (file,) = (tmp_path / "opencl").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert ask() == 1
    assert ask() == 0
    assert ask(GOOD.replace("7", "8")) == 1
    assert len(list((tmp_path / "opencl").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_done_without(device: Any, tmp_path: Path) -> None:
    from clover_rt_rocm.opencl.program import Programs

    (tmp_path / "opencl").write_text("a file where the folder would be")
    programs = Programs(device.context, device.handle, tmp_path / "opencl")
    programs.kernel(GOOD, "seven")
    assert programs.compiled == 1


@pytest.mark.parametrize("code", ["OUT_OF_RESOURCES", "DEVICE_NOT_AVAILABLE"])
def test_a_device_that_is_lost_names_the_last_operation(
    device: Any, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    import pyopencl as cl

    class Lost(cl.RuntimeError):
        def __str__(self) -> str:
            return f"clEnqueueReadBuffer failed: {code}"

    Lost.code = getattr(cl.status_code, code)

    def lost(*_: Any, **__: Any) -> Any:
        raise Lost

    device.last = "expert_gemm"
    monkeypatch.setattr(cl, "enqueue_copy", lost)
    with pytest.raises(DeviceLost, match="expert_gemm, then download"):
        device.download(device.alloc(4, Usage.EDGE), 0, np.empty(1, np.int32))


def test_a_pass_waits_for_the_device_once(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload, two steps, download: only the download blocks."""
    import pyopencl as cl

    waits: list[str] = []
    enqueue = cl.enqueue_copy

    def counted(queue: Any, dst: Any, src: Any, **given: Any) -> Any:
        to_host = isinstance(dst, np.ndarray)
        if given.get("is_blocking", True) and (to_host or isinstance(src, np.ndarray)):
            waits.append("to host" if to_host else "to device")
        return enqueue(queue, dst, src, **given)

    case = case_of("output_gate/N=64/T=33")
    with Bound(device, OPS[case.op], case, Precision.EXACT, case.inputs(0)) as bound:
        bound.run()
        step = device.capture([bound.steps[0], bound.steps[0]])
        monkeypatch.setattr(cl, "enqueue_copy", counted)
        device.upload(bound.buffers["params"], bound.lead, bound.before["params"])
        step()
        assert waits == []
        device.download(bound.buffers["y"], bound.lead, np.empty((33, 64), np.float32))
    assert waits == ["to host"]
