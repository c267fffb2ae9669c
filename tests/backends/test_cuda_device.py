"""A card as far as the host sees it: submissions, waits, compiling, errors, on a driver of ours.

The driver notes what it is asked for and runs nothing; memory is the host's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton

from clover_rt.backend import DeviceInfo, Usage
from clover_rt.errors import (
    BackendUnavailable,
    CloverError,
    CompileError,
    DeviceLost,
    OutOfMemory,
)
from clover_rt.spec import Format, HostWeight, Precision, encode_q4
from clover_rt_cuda import cache, card
from clover_rt_cuda import device as device_module
from clover_rt_cuda.ahead import hot
from clover_rt_cuda.device import CudaDevice, longest_prefix
from clover_rt_cuda.graphs import Graphs
from clover_rt_cuda.kernels.attend import LEAST_SPLIT
from clover_rt_cuda.launch import Launch
from tests.unit.plan_bench import bind_toy, commit, preview

INFO = DeviceInfo("cuda:0", "a card", "gpu", notes={"arch": "sm_90", "cuda": "12.8"})
WAITS = ("item", "tolist", "cpu", "nonzero")
PASS = ["upload", "replay", "wait"]


class Driver:
    """Takes the place of torch.cuda: notes submissions and waits.

    noted      in order: upload, wait, record, replay, settle (a wait for all streams), release
    is_busy    an upload has not arrived yet
    launched   (kernel, were all tables empty) of each launch
    """

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.launched: list[tuple[str, bool]] = []
        self.is_busy = False
        self.free, self.total = 3 << 30, 24 << 30
        self.reserved = self.allocated = 0

    def Stream(self, device: torch.device) -> Driver:  # noqa: N802 - torch's name
        return self

    def CUDAGraph(self) -> Driver:  # noqa: N802 - torch's name
        return self

    def stream(self, stream: Driver) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self.free, self.total

    def memory_reserved(self, device: torch.device) -> int:
        return self.reserved

    def memory_allocated(self, device: torch.device) -> int:
        return self.allocated

    def empty_cache(self) -> None:
        self.noted.append("release")

    def record_event(self) -> Driver:
        self.noted.append("upload")
        return self

    def query(self) -> bool:
        return not self.is_busy

    def synchronize(self, device: torch.device | None = None) -> None:
        self.noted.append("wait" if device is None else "settle")

    def capture_begin(self, capture_error_mode: str) -> None:
        self.noted.append("record")

    def capture_end(self) -> None:
        self.noted.append("recorded")

    def replay(self) -> None:
        self.noted.append("replay")

    def take(self) -> list[str]:
        """Return what was noted since the last call."""
        noted, self.noted = self.noted, []
        return noted


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    driver = Driver()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(card, "cuda", driver)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)

    def waits(tensor: torch.Tensor, *args: Any) -> None:
        driver.noted.append("wait")

    for name in WAITS:
        monkeypatch.setattr(torch.Tensor, name, waits)
    return driver


@pytest.fixture
def device(driver: Driver) -> Iterator[CudaDevice]:
    device = CudaDevice(INFO)
    device.torch = torch.device("cpu")
    yield device
    device.close()


@pytest.fixture
def still(driver: Driver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note launches and compilations instead of making them; return the names of the latter."""
    compiled: list[str] = []

    def launch(self: CudaDevice, sig: Any, kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
        heads = [b.data.numpy()[4:32] for b in self._buffers if b.is_table]
        driver.launched.append((kernel.__name__, not any(head.any() for head in heads)))

    fill = CudaDevice.fill

    def noted(self: CudaDevice, target: torch.Tensor, source: Any) -> None:
        driver.noted.append("fill")
        fill(self, target, source)

    # it waits for the card, which a pass must not
    monkeypatch.setattr(CudaDevice, "fill", noted)
    monkeypatch.setattr(CudaDevice, "launch", launch)
    monkeypatch.setattr(
        device_module, "_compile", lambda launch: compiled.append(launch.kernel.__name__)
    )
    return compiled


def test_a_pass_is_one_upload_one_replay_and_one_wait(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    plan = bind_toy(device)
    plan.run(commit([1]))
    plan.run(preview(range(2, 18), position=1, wanted="all"))
    driver.take()
    driver.launched.clear()
    plan.run(commit([3], position=1))
    assert driver.take() == PASS
    plan.run(preview(range(4, 20), position=2, wanted="all"))
    assert driver.take() == PASS
    assert driver.launched == []


def test_a_pass_is_recorded_at_its_first_run_and_replayed_from_then_on(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    plan = bind_toy(device)
    driver.take()
    plan.run(commit([1]))
    # what is bound for the first pass of its kind may be filled
    noted = [what for what in driver.take() if what != "fill"]
    assert noted == ["upload", "record", "recorded", "replay", "wait"]
    assert len(device.graphs) == 1


def test_the_first_launches_run_on_an_empty_table_and_the_pass_on_its_own(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    plan = bind_toy(device)
    tables: list[bytes] = []
    replay = driver.replay

    def replayed() -> None:
        (table,) = [b for b in device._buffers if b.is_table]
        tables.append(bytes(table.data.numpy()))
        replay()

    driver.replay = replayed  # type: ignore[method-assign]
    plan.run(commit([7]))
    half = len(driver.launched) // 2
    warm, recorded = driver.launched[:half], driver.launched[half:]
    assert all(is_empty for _, is_empty in warm)
    assert [name for name, _ in warm] == [name for name, _ in recorded]
    assert tables == [bytes(plan._staging.buffer)]


def test_a_long_prefix_has_a_graph_of_its_own(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    plan = bind_toy(device)
    joins = []
    for position in (0, LEAST_SPLIT, LEAST_SPLIT + 1, 200, 3):
        driver.launched.clear()
        plan.run(commit([1], position=position))
        joins.append(sum(name == "join_kernel" for name, _ in driver.launched))
    # the model has one layer of attention, launched once to warm up and once to be recorded
    assert joins == [0, 0, 2, 0, 0]
    assert len(device.graphs) == 2


def test_the_graph_that_was_used_longest_ago_makes_room(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    device.graphs = Graphs(most=2)
    plan = bind_toy(device)
    driver.take()
    # rows of a pass: 1, 16 and 32 are buckets of their own
    for rows, recorded in ((1, 1), (16, 1), (1, 0), (32, 1), (1, 0), (16, 1)):
        plan.run(commit(range(1, rows + 1)))
        assert driver.take().count("record") == recorded, rows
        assert len(device.graphs) <= 2


def test_without_graphs_the_same_launches_are_made_one_by_one(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    plan = bind_toy(device)
    plan.run(commit([1]))
    recorded = [name for name, _ in driver.launched]
    device.has_graphs = False
    driver.take()
    driver.launched.clear()
    plan.run(commit([1]))
    assert driver.take() == ["upload", "wait"]
    assert [name for name, _ in driver.launched] == recorded[: len(recorded) // 2]


def test_an_upload_waits_only_for_one_that_has_not_arrived(
    device: CudaDevice, driver: Driver
) -> None:
    buffer = device.alloc(256, Usage.PARAMS)
    device.upload(buffer, 0, np.zeros(256, np.uint8))
    device.upload(buffer, 0, np.zeros(256, np.uint8))
    assert driver.take() == ["upload", "upload"]
    driver.is_busy = True
    device.upload(buffer, 0, np.zeros(256, np.uint8))
    assert driver.take() == ["wait", "upload"]


def test_the_longest_prefix_is_read_from_the_table() -> None:
    words = np.zeros(8 + 3 * 8, np.int32)
    words[:3] = 1, 0, 2
    words[8 + 4], words[16 + 4], words[24 + 4] = 5, 300, 900
    assert longest_prefix(words.view(np.uint8)) == 300
    words[0] = 0x7FC07FC1
    assert longest_prefix(words.view(np.uint8)) == sys.maxsize


def test_compiling_tells_how_many_of_how_many(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    told: list[tuple[int, int, str]] = []
    plan = bind_toy(device)
    # as a load sets it
    device.on_progress = lambda *progress: told.append(progress)
    plan.run(commit([1]))
    total = len(still)
    assert total > 0
    assert [(done, n) for done, n, _ in told] == [(i, total) for i in range(total + 1)]
    assert [what for _, _, what in told[:-1]] == [f"compiling {name}" for name in still]
    plan.run(commit([1]))
    assert len(still) == total and len(told) == total + 1


def launches_of(op: str, device: CudaDevice, kernel: Any) -> Launch:
    sig = next(s for s in hot(1, "q4-64", Precision.FAST) if s.op == op)
    return Launch(device, sig, kernel, (1,), (), {})


class Failing:
    """A kernel whose launch or compilation raises; errors are raised one after the other."""

    __name__ = "failing"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def warmup(self, *args: Any, **meta: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.warmup


def assert_names_all(error: CloverError, *parts: str) -> None:
    for part in ("arch sm_90", "cuda 12.8", f"triton {triton.__version__}", *parts):
        assert part in error.what + error.evidence, part


def test_a_lost_card_is_told_with_what_ran_and_the_overrides(
    device: CudaDevice, driver: Driver, monkeypatch: pytest.MonkeyPatch, still: list[str]
) -> None:
    plan = bind_toy(device)
    plan.run(commit([1]))
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")

    def lost() -> None:
        raise RuntimeError("CUDA error: the launch timed out\nmore lines")

    driver.synchronize = lost  # type: ignore[method-assign]
    with pytest.raises(DeviceLost) as caught:
        plan.run(commit([2], position=1))
    launches = len(driver.launched) // 2
    last = f"last operation one of {launches} launches from begin ["
    assert_names_all(caught.value, last, " to confidence_topk [", "T=1", " ms before")
    assert_names_all(caught.value, "CUDA_MODULE_LOADING=EAGER", "timed out")
    assert caught.value.code == "CRT-3310"
    assert "--context" in caught.value.fix and "CUDA_LAUNCH_BLOCKING=1" in caught.value.fix


def test_the_folder_of_kernels_is_an_override_only_where_the_user_sets_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cache.VARIABLE, "")
    for arch in ("sm_90", "sm_80"):
        # another card of the program has a folder of its own
        assert cache.use_cache(arch).name == arch
        assert cache.is_ours(cache.VARIABLE, os.environ[cache.VARIABLE])
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "mine"))
    assert cache.use_cache("sm_90") == tmp_path / "mine"
    assert not cache.is_ours(cache.VARIABLE, os.environ[cache.VARIABLE])


def test_a_card_that_is_lost_in_a_launch_is_told_with_op_and_shape(device: CudaDevice) -> None:
    launch = launches_of("moe", device, Failing(RuntimeError("CUDA error: illegal address")))
    with pytest.raises(DeviceLost) as caught:
        launch()
    assert_names_all(caught.value, "in launch of moe [", "last operation moe [", "E=256", "T=1")


def test_a_closed_device_holds_no_memory_though_its_plan_is_kept(
    device: CudaDevice, driver: Driver, still: list[str]
) -> None:
    """The next model of the same program needs it."""
    made: list[torch.Tensor] = []
    pinned: list[int] = []
    zeros = torch.zeros

    def noted(*args: Any, **options: Any) -> torch.Tensor:
        made.append(zeros(*args, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "zeros", noted)
        patch.setattr(torch.Tensor, "pin_memory", lambda t: (pinned.append(t.data_ptr()), t)[1])
        plan = bind_toy(device)
        plan.run(commit([1]))
    assert sum(t.untyped_storage().nbytes() for t in made) > 1 << 20
    driver.take()
    plan.close()
    left = [t.untyped_storage() for t in made if t.data_ptr() not in pinned]
    # numpy has looked into the table here; and scratch that was outgrown is not the device's
    assert sum(storage.nbytes() for storage in left) < 1 << 14
    assert driver.take() == ["release"]


def test_a_weight_that_nobody_has_is_free_before_the_device_is_closed(device: CudaDevice) -> None:
    """Benchmarks prepare the weights of one operation after the other."""
    weight = device.zeros(8, torch.float32, "a weight")
    held = weakref.ref(weight)
    assert held() is weight
    del weight
    assert held() is None


def test_memory_that_torch_keeps_and_nobody_has_is_free(device: CudaDevice, driver: Driver) -> None:
    driver.reserved, driver.allocated = 5 << 30, 4 << 30
    assert device.memory().free == driver.free + (1 << 30)


def test_new_weights_are_waited_for_once_by_the_next_launch(
    device: CudaDevice, driver: Driver
) -> None:
    """What prepares them may compute on torch's own stream, which passes do not wait for."""
    launch = launches_of("moe", device, Failing())
    device.zeros(8, torch.float32, "a weight")
    driver.take()
    launch()
    launch()
    assert driver.take() == ["settle"]


@pytest.mark.parametrize(
    "error",
    [
        triton.CompilationError(None, None, "no such instruction"),
        triton.OutOfResources(200_000, 100_000, "shared memory"),
        RuntimeError("PassManager::run failed"),
    ],
    ids=["source", "shared memory", "passes"],
)
def test_a_kernel_that_does_not_compile_is_told_with_op_shape_and_arch(
    device: CudaDevice, error: Exception
) -> None:
    launch = launches_of("moe", device, Failing(error, error))
    for attempt in (lambda: device.compile([launch]), launch):
        with pytest.raises(CompileError) as caught:
            attempt()
        assert caught.value.code == "CRT-3521"
        assert_names_all(caught.value, "moe [", "E=256", "T=1", "expert_gate q4", str(error))
        assert "--backend vulkan" in caught.value.fix and "--backend cpu" in caught.value.fix


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        subprocess.CalledProcessError(1, ["gcc", "main.c", "-shared", "-fPIC", "-lcuda"]),
    ],
    ids=["none", "headers"],
)
def test_a_launcher_that_the_host_cannot_compile_is_told_with_what_to_install(
    device: CudaDevice, error: Exception
) -> None:
    launch = launches_of("moe", device, Failing(error, error))
    for attempt in (lambda: device.compile([launch]), launch):
        with pytest.raises(CompileError) as caught:
            attempt()
        assert caught.value.code == "CRT-3523"
        assert "gcc" in caught.value.fix and "CC" in caught.value.fix


LOST = RuntimeError("CUDA error: unspecified launch failure")
FOREIGN = RuntimeError("CUDA error: no kernel image is available for execution on the device")


def failing(error: Exception) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "CRT-3230"),
        (RuntimeError("CUDA error: out of memory"), "CRT-3230"),
        (LOST, "CRT-3310"),
        (FOREIGN, "CRT-3524"),
    ],
    ids=["torch's", "driver's", "lost", "no code"],
)
def test_only_what_is_of_memory_is_told_as_memory(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    monkeypatch.setattr(torch, "zeros", failing(error))
    with pytest.raises(CloverError) as caught:
        device.zeros(64, torch.uint8, "layers.3.mlp.experts.down_proj")
    assert caught.value.code == code
    assert str(error) in caught.value.evidence
    if code != "CRT-3230":
        assert_names_all(caught.value, "layers.3.mlp.experts.down_proj")


def test_a_card_without_code_is_told_with_what_has_code_for_it(device: CudaDevice) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        launches_of("moe", device, Failing(FOREIGN))()
    assert_names_all(caught.value, "no kernel image")
    assert "get_arch_list" in caught.value.fix and "--backend vulkan" in caught.value.fix


@pytest.mark.parametrize(
    ("error", "code"),
    [(LOST, "CRT-3310"), (RuntimeError("CUDA error: out of memory"), "CRT-3231")],
    ids=["lost", "memory"],
)
def test_a_card_that_fails_as_it_is_opened_is_told_as_what_it_is(
    driver: Driver, error: Exception, code: str
) -> None:
    driver.Stream = failing(error)  # type: ignore[method-assign]
    with pytest.raises(CloverError) as caught:
        CudaDevice(INFO)
    assert caught.value.code == code
    assert_names_all(caught.value, "in open")


def test_a_lost_card_is_told_wherever_it_is_asked(
    device: CudaDevice, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.mem_get_info = failing(LOST)  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        device.memory()
    monkeypatch.setattr(torch.Tensor, "pin_memory", failing(LOST))
    with pytest.raises(DeviceLost):
        device.alloc(1 << 16, Usage.PARAMS)


def test_a_card_that_is_lost_while_tables_are_empty_is_told(device: CudaDevice) -> None:
    table = device.alloc(1 << 16, Usage.PARAMS)

    class Lost:
        def __getitem__(self, part: slice) -> Lost:
            return self

        def clone(self) -> Lost:
            return self

        def zero_(self) -> None:
            """Succeed: the card is lost later."""

        def copy_(self, other: Any) -> None:
            raise LOST

    own, table.data = table.data, Lost()  # type: ignore[assignment]
    with pytest.raises(DeviceLost), device.emptied():
        pass
    table.data = own


def test_a_launch_without_memory_names_op_free_memory_and_three_remedies(
    device: CudaDevice,
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    with pytest.raises(OutOfMemory) as caught:
        launches_of("gdn", device, Failing(error))()
    assert caught.value.code == "CRT-3231"
    assert_names_all(caught.value, "gdn [", f"free {3 << 30} of {24 << 30} bytes")
    assert caught.value.fix.count(";") == 2


def test_what_is_no_fault_of_card_or_compiler_passes_as_it_is(device: CudaDevice) -> None:
    with pytest.raises(ValueError, match="a bug"):
        launches_of("gdn", device, Failing(ValueError("a bug")))()


def test_the_cache_lies_apart_for_each_compiler_and_arch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(cache.VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache.use_cache("sm_90")
    assert folder == tmp_path / "clover-rt" / "triton" / triton.__version__ / "sm_90"
    assert os.environ[cache.VARIABLE] == str(folder)


def test_a_cache_that_cannot_be_written_is_replaced_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "kernels"))
    with pytest.warns(RuntimeWarning, match="compiles them anew"):
        folder = cache.use_cache("sm_90")
    assert folder.is_dir() and os.environ[cache.VARIABLE] == str(folder)


def test_a_cache_that_is_full_is_left_and_the_kernel_compiled_again(device: CudaDevice) -> None:
    kernel = Failing(OSError(28, "No space left on device"))
    with pytest.warns(RuntimeWarning, match="No space left"):
        device.compile([launches_of("moe", device, kernel)])
    assert kernel.errors == []


def test_zero_points_of_a_later_piece_are_copied_too(device: CudaDevice) -> None:
    values = np.random.default_rng(0).normal(size=(1, 3, 32)).astype(np.float32)
    without, zeros = encode_q4(values, 32), encode_q4(values, 32, zero_point=True)
    mixed = HostWeight("experts.gate", Format.Q4, (2, 3, 32), (without, zeros), 32)
    copied = device.kernels["linear"].upload(mixed)
    assert zeros.zero is not None
    assert copied.zero.numpy().tobytes() == bytes([8] * 3) + zeros.zero.tobytes()
