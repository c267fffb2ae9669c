"""The OpenCL device: memory, errors, programs and their cache, progress, one wait a pass."""

from __future__ import annotations

import errno
import os
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
    remedies = caught.value.fix.split("; ")
    assert [text.split()[0] for text in remedies] == ["lower", "quantize", "or"]
    assert "--context" in remedies[0] and "--precision fast" in remedies[0]


def test_a_weight_too_large_is_first_told_to_be_quantized(device: Any) -> None:
    with pytest.raises(OutOfMemory) as caught:
        device.allocate(1 << 60, "codes of layers.0.mlp.gate")
    assert caught.value.what.startswith("codes of layers.0.mlp.gate was to get")
    assert [text.split()[0] for text in caught.value.fix.split("; ")] == ["quantize", "lower", "or"]


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


def test_a_kernel_that_does_not_compile_is_told_with_op_shape_and_driver(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover_rt_rocm.opencl import kernel

    monkeypatch.setenv("OCL_ICD_VENDORS", "a folder")
    text = kernel.text
    monkeypatch.setattr(kernel, "text", lambda name: text(name) + "undeclared_name x;\n")
    case = case_of("output_gate/N=64/T=33")
    with (
        Bound(device, OPS[case.op], case, Precision.EXACT, case.inputs(0)) as bound,
        pytest.raises(CompileError) as caught,
    ):
        bound.run()
    assert caught.value.code == "CRT-3540"
    assert (
        "kernel output_gate of output_gate [L=0, N=64, T=33, W=1] commit did" in caught.value.what
    )
    for word in ("undeclared_name", device.handle.driver_version, "OCL_ICD_VENDORS=a folder"):
        assert word in caught.value.evidence
    assert caught.value.evidence.count("BUILD_PROGRAM_FAILURE") == 1
    assert caught.value.fix == "update the device's driver, or use --backend cpu"


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "POCL_CACHE_DIR", "TMPDIR"])
def test_a_folder_without_room_is_named_where_a_kernel_does_not_compile(
    device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    from clover_rt_rocm.opencl import failures, kernel

    folder = tmp_path / "full"
    folder.mkdir()
    temporary = failures.tempfile.TemporaryFile

    def full(dir: Path) -> Any:
        if dir == folder:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return temporary(dir=dir)

    monkeypatch.setattr(failures.tempfile, "TemporaryFile", full)
    monkeypatch.setattr(kernel, "text", lambda name: "undeclared_name x;\n")
    case = case_of("output_gate/N=64/T=33")
    with (
        Bound(device, OPS[case.op], case, Precision.EXACT, case.inputs(0)) as bound,
        pytest.raises(CompileError) as caught,
    ):
        monkeypatch.setenv(name, str(folder))
        bound.run()
    assert caught.value.fix.startswith(
        f"make room in {folder}, which the compiler writes to (No space left on device), or set "
        f"{name} to a folder that can be written; if"
    )


def test_a_pass_compiles_all_its_programs_first_and_tells_how_many(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyopencl as cl

    told: list[Any] = []
    launch = cl.enqueue_nd_range_kernel
    names = ("output_gate/N=64/T=33", "kv_append/commit7", "output_gate/N=64/T=0")
    cases = [case_of(name) for name in names]
    bounds = [Bound(device, OPS[c.op], c, Precision.EXACT, c.inputs(0)) for c in cases]
    step = device.capture([step for bound in bounds for step in bound.steps])
    monkeypatch.setattr(
        cl, "enqueue_nd_range_kernel", lambda *given: (told.append("launch"), launch(*given))
    )
    device.on_progress = lambda *progress: told.append(progress)
    compiling = [
        (0, 2, "compiling output_gate"),
        (1, 2, "compiling kv_append"),
        (2, 2, "compiling"),
    ]
    step()
    assert told == [*compiling, *["launch"] * 3]
    step()
    assert told == [*compiling, *["launch"] * 6]
    for bound in bounds:
        bound.close()


def test_a_program_is_compiled_once_and_then_read_from_disk(device: Any, tmp_path: Path) -> None:
    from clover_rt_rocm.opencl.program import Programs

    def ask(source: str = GOOD) -> int:
        programs = Programs(device.context, device.handle, folder=tmp_path / "opencl")
        programs.build(source)
        programs.build(source)
        return programs.compiled

    assert ask() == 1
    assert ask() == 0
    (file,) = (tmp_path / "opencl").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert ask() == 1
    assert ask() == 0
    assert ask(GOOD.replace("7", "8")) == 1
    assert len(list((tmp_path / "opencl").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_done_without_and_told_once(
    device: Any, tmp_path: Path
) -> None:
    from clover_rt_rocm.opencl.program import Programs

    (tmp_path / "opencl").write_text("a file where the folder would be")
    programs = Programs(device.context, device.handle, folder=tmp_path / "opencl")
    with pytest.warns(RuntimeWarning, match="each start compiles them anew") as told:
        programs.build(GOOD)
        programs.build(GOOD.replace("7", "8"))
    assert programs.compiled == 2
    assert len(told) == 1


@pytest.mark.parametrize("code", ["OUT_OF_RESOURCES", "DEVICE_NOT_AVAILABLE"])
def test_a_device_that_is_lost_is_told_with_what_ran_and_what_makes_it_shorter(
    device: Any, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    import pyopencl as cl

    class Lost(cl.RuntimeError):
        def __str__(self) -> str:
            return f"clEnqueueReadBuffer failed: {code}"

    Lost.code = getattr(cl.status_code, code)

    def lost(*_: Any, **__: Any) -> Any:
        raise Lost

    monkeypatch.setenv("GPU_DEVICE_ORDINAL", "0")
    cases = [case_of(name) for name in ("output_gate/N=64/T=33", "kv_append/commit7")]
    bounds = [Bound(device, OPS[c.op], c, Precision.EXACT, c.inputs(0)) for c in cases]
    device.capture([bound.steps[0] for bound in bounds])()
    monkeypatch.setattr(cl, "enqueue_copy", lost)
    with pytest.raises(DeviceLost) as caught:
        device.download(bounds[0].buffers["y"], 0, np.empty(1, np.int32))
    assert caught.value.code == "CRT-3320"
    for words in (
        "in download; last operation one of 2 launches from output_gate [L=0, N=64, T=33, W=1] "
        "commit to kv_append [G=2, K=32, ",
        " commit, submitted ",
        " ms before; ",
        f"driver {device.handle.driver_version.strip()}",
        "GPU_DEVICE_ORDINAL=0",
        code,
    ):
        assert words in caught.value.evidence
    assert all(flag in caught.value.fix for flag in ("--profile", "--context", "--block-size"))
    bounds[0].steps[0]()
    with pytest.raises(DeviceLost, match=r"last operation output_gate \[L=0, N=64, .* commit, sub"):
        device.download(bounds[0].buffers["y"], 0, np.empty(1, np.int32))


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
