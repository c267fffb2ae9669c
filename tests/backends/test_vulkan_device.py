"""The vulkan device: memory, errors, compiled shaders and their cache, one submission a pass."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clover_rt.backend import Usage
from clover_rt.cli.summary import summary
from clover_rt.errors import BackendUnavailable, CloverError, CompileError, DeviceLost, OutOfMemory
from clover_rt.ops import OPS
from clover_rt.spec import Case, Format, HostWeight, Precision, Weight
from clover_rt_conformance.bound import Bound
from tests.backends.vulkan_devices import open_vulkan


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    device = open_vulkan()
    yield device
    device.close()


@pytest.fixture
def device(opened: Any) -> Iterator[Any]:
    yield opened
    opened.synchronize()


def case_of(name: str) -> Case:
    return next(c for c in OPS[name.partition("/")[0]].cases() if c.id == name)


def bound(device: Any, name: str) -> Bound:
    case = case_of(name)
    return Bound(device, OPS[case.op], case, Precision.EXACT, case.inputs(0))


def outputs(device: Any, case: Case, inputs: Any) -> dict[str, np.ndarray]:
    spec = OPS[case.op]
    with Bound(device, spec, case, Precision.EXACT, inputs) as ran:
        after = ran.run()
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


def test_a_copy_onto_itself_is_as_if_through_other_memory(device: Any) -> None:
    buffer = device.alloc(100, Usage.EDGE)
    sent = np.arange(100, dtype=np.uint8)
    device.upload(buffer, 0, sent)
    device.copy(buffer, 3, buffer, 0, 90)
    got = np.empty(100, np.uint8)
    device.download(buffer, 0, got)
    assert got.tolist() == [*range(3), *range(90), *range(93, 100)]


def test_what_is_larger_than_the_ring_goes_through_it_whole(device: Any) -> None:
    from clover_rt_vulkan.driver.queue import RING_BYTES

    sent = np.random.default_rng(0).integers(0, 256, RING_BYTES + 12345).astype(np.uint8)
    buffer = device.alloc(sent.nbytes + 3, Usage.EDGE)
    device.upload(buffer, 3, sent)
    got = np.empty_like(sent)
    device.download(buffer, 3, got)
    assert np.array_equal(got, sent)


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (61, 1), (64, 1), (0, 17)])
def test_a_copy_past_the_buffer_names_both_sizes(device: Any, offset: int, count: int) -> None:
    buffer = device.alloc(64, Usage.EDGE)
    with pytest.raises(CloverError, match="the buffer has 64 bytes"):
        device.upload(buffer, offset, np.zeros(count, np.float32))
    with pytest.raises(CloverError, match="the buffer has 64 bytes"):
        device.download(buffer, offset, np.zeros(count, np.float32))


def test_a_buffer_over_the_limit_gives_all_numbers_and_remedies(device: Any) -> None:
    with pytest.raises(OutOfMemory, match=f"requested {1 << 60} bytes, free") as caught:
        device.alloc(1 << 60, Usage.STATE)
    assert str(device.max_binding_bytes) in caught.value.evidence
    assert all(word in caught.value.fix for word in ("--context", "--precision fast", "quantize"))


def test_more_memory_than_there_is_says_what_is_left(device: Any) -> None:
    total, each = device.memory().total, device.max_binding_bytes
    held: list[Any] = []
    with pytest.raises(OutOfMemory, match=f"requested {each} bytes, free") as caught:
        for _ in range(total // each + 1):
            held.append(device.alloc(each, Usage.EDGE))
    assert "bytes are left" in caught.value.evidence
    held.clear()
    # what was let go serves the next one
    device.alloc(each, Usage.EDGE)


def test_a_weight_that_does_not_fit_is_named(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from clover_rt_vulkan.weights import matrices

    zeros = Weight(Format.F32, (3, 1 << 14), np.zeros((3, 1 << 14), np.float32))
    wide = HostWeight.of(zeros, "layers.0.mlp.gate")
    monkeypatch.setattr(device, "max_binding_bytes", 24 << 10)
    with pytest.raises(OutOfMemory, match=r"layers\.0\.mlp\.gate was to be copied"):
        matrices(device, {"w": wide})


def test_what_is_freed_is_free_again(device: Any) -> None:
    before = device.memory().free
    buffer = device.alloc(1 << 20, Usage.EDGE)
    assert before - device.memory().free == 1 << 20
    device.free(buffer)
    assert device.memory().free == before


def test_what_a_bound_step_used_goes_with_it(device: Any) -> None:
    before = device.memory().free
    case = case_of("linear/q8/T=7,N=63,K=192")
    outputs(device, case, case.inputs(0))
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
    del kernel.prepare
    found = made[0]["gate"] if case.op == "expert_gemm" else made[0]
    assert len(found.parts) > 1
    for key, array in whole.items():
        assert array.tobytes() == split[key].tobytes(), key


def test_pieces_of_a_mapped_file_lie_one_behind_the_other(device: Any) -> None:
    """Pieces of odd heights, and one with zero points beside one without."""
    from clover_rt_vulkan.weights import matrices

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


def test_a_shader_that_the_driver_refuses_is_named(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover_rt_vulkan.driver import DriverFailure, Trouble

    def refused(*_: Any) -> Any:
        raise DriverFailure(Trouble.OTHER, "vkCreateComputePipelines", "VK_ERROR_UNKNOWN")

    monkeypatch.setattr(device.driver, "pipeline", refused)
    with pytest.raises(CompileError, match="kernel rms_norm did not compile") as caught:
        bound(device, "rms_norm/G=1,K=64/T=1/offset=0")
    assert caught.value.code == "CRT-3500" and "VK_ERROR_UNKNOWN" in caught.value.evidence


def test_a_pipeline_is_compiled_once_and_its_cache_is_read_again(tmp_path: Path) -> None:
    case = "output_gate/N=64/T=33"
    for start in range(2):
        device = open_vulkan(cache=tmp_path)
        for _ in range(2):
            bound(device, case).run()
        assert device.driver.pipelines.compiled == 1
        device.close()
        (file,) = tmp_path.iterdir()
        data = file.read_bytes()
        assert hashlib.sha256(data[32:]).digest() == data[:32]
        # a file that was cut off is not given to the driver
        file.write_bytes(data[: -start - 1])


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "vulkan"
    blocked.write_text("a file where the folder would be")
    device = open_vulkan(cache=blocked)
    bound(device, "output_gate/N=64/T=33").run()
    device.close()
    assert blocked.is_file()


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitSemaphores"])
def test_a_device_that_is_lost_in_a_pass_names_the_last_operation(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    import vulkan

    from clover_rt_vulkan.driver import queue, vk

    device = open_vulkan()
    step = bound(device, "output_gate/N=64/T=33")
    step.run()

    class Lost:
        """The driver's functions, of which one finds the device gone."""

        def __getattr__(self, name: str) -> Any:
            if name == call:
                return lambda *_: vulkan.VK_ERROR_DEVICE_LOST
            return getattr(vulkan.lib, name)

    monkeypatch.setattr(vk, "lib", Lost())
    step.steps[0]()
    with pytest.raises(DeviceLost, match="output_gate, then download") as caught:
        device.download(step.buffers["y"], 0, np.empty(1, np.float32))
    assert f"{call}: VK_ERROR_DEVICE_LOST" in caught.value.evidence
    # it can still be closed
    device.close()
    assert queue.lib is vulkan.lib


def test_a_pass_is_one_submission(device: Any) -> None:
    """Upload, two steps, download; the first run of a recording is cut where it is long."""
    with bound(device, "output_gate/N=64/T=33") as ran:
        ran.run()
        step = device.capture([ran.steps[0], ran.steps[0]])
        before = device.driver.counts.submissions
        for _ in range(2):
            device.upload(ran.buffers["params"], ran.lead, ran.before["params"])
            step()
            device.download(ran.buffers["y"], ran.lead, np.empty((33, 64), np.float32))
    assert device.driver.counts.submissions == before + 2


def test_a_pass_over_the_budget_is_cut_and_counted() -> None:
    """Every time is over a budget of a nanosecond, and none over an hour."""
    for budget_s, pieces in ((1e-9, 3), (3600.0, 1)):
        device = open_vulkan(budget_s=budget_s)
        with bound(device, "output_gate/N=64/T=33") as ran:
            want = ran.run()["y"]
            step: Any = device.capture([ran.steps[0]] * 3)
            cuts = device.driver.counts.cut_passes
            for _ in range(3):
                step()
            got = np.empty_like(want)
            device.download(ran.buffers["y"], ran.lead, got)
            assert len(step.recording.pieces) == pieces
            assert len(device.driver.times(step.recording)) == pieces
            # the first run was not known to be long
            assert device.driver.counts.cut_passes - cuts == (2 if pieces > 1 else 0)
            assert np.array_equal(got, want)
        device.close()


def test_a_pass_of_twice_the_budget_is_cut_between_layers_and_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three layers of two dispatches; its times are told, not measured."""
    from clover_rt_vulkan.driver import recording

    def times(self: Any) -> list[float]:
        return [2.0 / len(self.pieces)] * len(self.pieces) if self.number else []

    monkeypatch.setattr(recording.Recording, "read_times", times)
    device = open_vulkan(budget_s=1.0)
    with bound(device, "output_gate/N=64/T=33") as ran:
        (launch,) = ran.steps
        step: Any = device.capture_layers([[launch, launch], [], [launch, launch], [launch] * 2])
        for _ in range(3):
            step()
            device.synchronize()
    # the first run is not known to be long
    assert step.recording.layers == [0, 2, 4]
    assert len(step.recording.pieces) == 2
    assert step.recording._starts[1] in (2, 4)
    tally = device.tally()
    assert (tally["device passes"], tally["cut passes"]) == (3, 2)
    # besides, what was uploaded before the first went with it
    assert tally["submissions"] == 5
    device.close()


def test_the_summary_of_a_run_shows_what_the_device_counted(device: Any) -> None:
    stats = {"mode": "ar", "device": "a card", "precision": "exact", "tokens": 1, "passes": 0}
    stats |= {"blocks": 0, "tokens_per_s": 0.0, "native_ops": 1, "ops": 1, "host_ops": []}
    line = summary(stats, "stop", device.tally())
    assert f"{device.driver.counts.submissions} submissions" in line
    assert f"{device.driver.counts.cut_passes} cut passes" in line


def test_a_long_pass_is_cut_at_its_first_run_and_whole_afterwards() -> None:
    from clover_rt_vulkan.driver.recording import FIRST

    device = open_vulkan(budget_s=3600.0)
    with bound(device, "output_gate/N=64/T=33") as ran:
        step: Any = device.capture([ran.steps[0]] * (2 * FIRST + 1))
        for pieces in (3, 1):
            step()
            assert len(step.recording.pieces) == pieces
    device.close()


def test_a_shader_is_called_by_its_own_names_only(device: Any) -> None:
    with bound(device, "output_gate/N=64/T=33") as ran:
        kernel, sig = device.kernels["output_gate"], ran.parts[0].sig
        given = {name: next(iter(ran.buffers.values())) for name in ("params", "o", "gate", "y")}
        wrong = [
            ({**given, "z": given["o"]}, {}, {"N": 64}, "buffers: unknown"),
            ({k: v for k, v in given.items() if k != "o"}, {}, {"N": 64}, "buffers: missing"),
            (given, {}, {}, "push constants: missing"),
            (given, {}, {"N": 64, "M": 1}, "push constants: unknown"),
            (given, {"ROWS": 1}, {"N": 64}, "constants: unknown"),
        ]
        for buffers, constants, push, told in wrong:
            with pytest.raises(CloverError, match=told) as caught:
                kernel.dispatch(sig, "output_gate", (1, 33), buffers, constants, **push)
            assert caught.value.code == "CRT-9034"
        with pytest.raises(CloverError, match="groups exceed"):
            kernel.dispatch(sig, "output_gate", (1, 1 << 30), given, N=64)


def library(folder: Path) -> Any:
    from clover_rt_vulkan.library import SPIRV, Library

    shutil.copytree(SPIRV, folder, dirs_exist_ok=True)
    return Library(folder)


def test_shaders_that_were_altered_are_not_run(tmp_path: Path) -> None:
    shaders = library(tmp_path)
    path = tmp_path / "rms_norm.spv"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(BackendUnavailable, match=r"rms_norm.*SHA-256") as caught:
        shaders.code("rms_norm")
    assert caught.value.code == "CRT-3531" and "pip install" in caught.value.fix
    assert shaders.code("output_gate")


@pytest.mark.parametrize("content", [None, "", "{}", json.dumps({"schema": 99, "shaders": {}})])
def test_an_index_that_cannot_be_read_names_the_file(tmp_path: Path, content: str | None) -> None:
    from clover_rt_vulkan.library import Library

    if content is not None:
        (tmp_path / "index.json").write_text(content)
    with pytest.raises(BackendUnavailable, match=r"index\.json") as caught:
        Library(tmp_path)
    assert caught.value.code == "CRT-3530"


def test_a_shader_that_is_missing_names_the_file(tmp_path: Path) -> None:
    shaders = library(tmp_path)
    (tmp_path / "rms_norm.spv").unlink()
    with pytest.raises(BackendUnavailable, match=r"rms_norm\.spv") as caught:
        shaders.code("rms_norm")
    assert caught.value.code == "CRT-3530"


def test_every_shader_that_ships_is_as_it_was_built() -> None:
    from clover_rt_vulkan.library import Library

    shaders = Library()
    assert all(shaders.code(name) for name in shaders.shaders)
