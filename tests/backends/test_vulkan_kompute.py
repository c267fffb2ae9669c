"""The Kompute driver: what it does with kp, against one in numpy; and through kp itself.

What needs kp is marked `kompute` and has its own lane: `make kompute`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import clover_rt_conformance
from clover_rt.backend import Device, Usage
from clover_rt.errors import BackendUnavailable, CompileError, DeviceLost, OutOfMemory
from clover_rt.ops import HOT
from clover_rt_vulkan import find
from clover_rt_vulkan.driver import Binding, Dispatch, DriverFailure, Shape, Trouble, build_kompute
from tests.backends.vulkan_devices import HOT_CASES, open_vulkan


class Tensor:
    """Memory on both sides; on the device there is dirt until something is copied there."""

    def __init__(self, data: np.ndarray) -> None:
        self.staging, self.device = data.copy(), np.full_like(data, 0xDEAD)

    def data(self) -> np.ndarray:
        return self.staging


class Sequence:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.steps: list[Any] = []

    def record(self, step: Any) -> Sequence:
        self.steps.append(step)
        return self

    def eval(self) -> None:
        self.manager.evaluated.append(self)
        # kp says nothing of a device that is lost
        if not self.manager.is_lost:
            for step in self.steps:
                step()


class Manager:
    """A device that only adds: a dispatch of push words a, b, n writes x[a] + n to y[b]."""

    opened: ClassVar[list[Manager]] = []

    def __init__(self, index: int, families: list[int]) -> None:
        self.index, self.families = index, families
        self.evaluated: list[Sequence] = []
        self.compiled: list[Any] = []
        self.is_lost = False
        self.name = type(self).name_of(index)
        Manager.opened.append(self)

    @staticmethod
    def name_of(index: int) -> str:
        from clover_rt_vulkan.driver import cards

        with cards.instance() as instance:
            return cards.cards(instance)[index].name

    def get_device_properties(self) -> dict[str, str]:
        return {"device_name": self.name}

    def tensor_t(self, data: np.ndarray) -> Tensor:
        return Tensor(data)

    def sequence(self) -> Sequence:
        return Sequence(self)

    def algorithm(self, tensors: list[Tensor], code: bytes, groups: Any, *words: Any) -> Any:
        self.compiled.append((code, groups))
        return tensors

    def destroy(self) -> None:
        return None


def dispatched(tensors: list[Tensor], push: np.ndarray) -> Any:
    def run() -> None:
        (x, y), (a, b, n) = tensors, push.tolist()
        y.device[b] = x.device[a] + n

    return run


def copied(source: str, target: str) -> Any:
    def record(tensors: list[Tensor]) -> Any:
        def run() -> None:
            for t in tensors:
                getattr(t, target)[:] = getattr(t, source)

        return run

    return record


@pytest.fixture
def kompute(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The driver's module, on a kp in numpy."""
    fake = SimpleNamespace(
        __version__="0.9.0",
        Manager=Manager,
        OpAlgoDispatch=dispatched,
        OpTensorSyncDevice=copied("staging", "device"),
        OpTensorSyncLocal=copied("device", "staging"),
    )
    name = "clover_rt_vulkan.driver.kompute"
    before = sys.modules.pop(name, None)
    monkeypatch.setitem(sys.modules, "kp", fake)
    import clover_rt_vulkan.driver.kompute as module

    yield module
    sys.modules.pop(name)
    if before is not None:
        sys.modules[name] = before


@pytest.fixture
def device(kompute: Any) -> Iterator[Any]:
    opened = open_vulkan(is_kompute=True)
    yield opened
    opened.close()


def add(driver: Any, x: Binding, y: Binding, n: int) -> Dispatch:
    # a module of a header alone
    pipeline = driver.pipeline(bytes(20), Shape(2, 12), {})
    push = np.array([0, 0, n], np.uint32).tobytes()
    return Dispatch("add", pipeline, (1, 1, 1), (x, y), push)


def reads(memory: Any, offset: int = 0) -> Binding:
    return Binding(memory, offset, 16, False)


def writes(memory: Any, offset: int = 0) -> Binding:
    return Binding(memory, offset, 16, True)


def words(driver: Any, memory: Any, count: int) -> list[int]:
    out = np.empty(4 * count, np.uint8)
    driver.download(memory, 0, out)
    return out.view(np.uint32).tolist()


def test_each_stage_is_a_sequence_of_its_own_in_order(device: Any) -> None:
    """Four dispatches of which the second and third need not wait for each other."""
    driver = device.driver
    a, b, c, d = (driver.buffer(16) for _ in range(4))
    recording = driver.record(
        [
            add(driver, reads(a), writes(b), 1),
            add(driver, reads(b), writes(c), 10),
            add(driver, reads(b), writes(d), 100),
            add(driver, reads(c), writes(a), 1000),
        ]
    )
    assert [len(s.steps) for s in recording.sequences] == [1, 2, 1]
    before = replace(driver.counts)
    driver.submit(recording)
    assert [words(driver, m, 1)[0] for m in (a, b, c, d)] == [1011, 1, 11, 101]
    driver.submit(recording)
    assert words(driver, a, 1) == [2022]
    assert driver.counts.passes == before.passes + 2
    assert driver.counts.cut_passes == before.cut_passes + 2
    ran = Manager.opened[-1].evaluated
    assert [s for s in ran if s in recording.sequences] == [*recording.sequences] * 2


def test_where_a_binding_starts_is_added_to_the_push_constants(device: Any) -> None:
    driver = device.driver
    memory = driver.buffer(128)
    driver.upload(memory, 64, np.array([7], np.uint32).view(np.uint8))
    driver.submit(driver.record([add(driver, reads(memory, 64), writes(memory, 32), 5)]))
    found = words(driver, memory, 32)
    assert (found[16], found[8], sum(found)) == (7, 12, 19)


def test_a_part_that_is_uploaded_keeps_what_the_device_wrote_beside_it(device: Any) -> None:
    driver = device.driver
    x, y = driver.buffer(32), driver.buffer(32)
    driver.submit(driver.record([add(driver, reads(x), writes(y), 3)]))
    driver.upload(y, 16, np.array([9], np.uint32).view(np.uint8))
    driver.copy(x, 0, y, 0, 20)
    driver.submit(driver.record([add(driver, reads(x), writes(y, 16), 1)]))
    assert words(driver, y, 5) == [3, 0, 0, 0, 4]
    assert words(driver, x, 5) == [3, 0, 0, 0, 9]


def test_what_is_bound_alike_is_compiled_once_and_a_grid_of_nothing_is_left_out(
    device: Any,
) -> None:
    driver = device.driver
    x, y = driver.buffer(32), driver.buffer(32)
    one = add(driver, reads(x), writes(y), 1)
    count = len(Manager.opened[-1].compiled)
    held = [driver.record([one, replace(one, groups=(0, 1, 1))]) for _ in range(3)]
    assert len(Manager.opened[-1].compiled) == count + 1
    assert all(len(recording.sequences) == 1 for recording in held)
    driver.record([replace(one, groups=(2, 1, 1))])
    assert len(Manager.opened[-1].compiled) == count + 2


def test_a_tensor_of_4_gib_is_refused_before_kp_wraps_its_size(
    kompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card that would bind more."""
    from clover_rt_vulkan.driver import cards

    found = cards.cards
    large = 1 << 40

    def listed(instance: Any) -> Any:
        given = found(instance)
        limits = replace(given[0].limits, binding=large, allocation=large)
        return [replace(card, limits=limits) for card in given]

    monkeypatch.setattr(cards, "cards", listed)
    device = open_vulkan(is_kompute=True)
    assert device.max_binding_bytes < 1 << 32
    with pytest.raises(OutOfMemory, match=f"requested {1 << 32} bytes") as caught:
        device.alloc(1 << 32, Usage.EDGE)
    assert str(device.max_binding_bytes) in caught.value.evidence
    with pytest.raises(DriverFailure, match="kp takes at most") as told:
        device.driver.buffer(1 << 32)
    assert told.value.trouble is Trouble.MEMORY
    device.close()


def test_memory_that_is_not_left_is_refused_before_kp_loses_it(
    device: Any, kompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kp looks at no result of an allocation; a tensor takes its size on both sides."""
    device.alloc(1000, Usage.EDGE)
    monkeypatch.setattr(kompute, "budgets", lambda card: [4000] * 8)
    with pytest.raises(OutOfMemory, match="a tensor and its copy of 2016 bytes") as caught:
        device.alloc(2000, Usage.EDGE)
    assert "2000 bytes are left" in caught.value.evidence
    assert caught.value.code == "CRT-3252"


def test_a_lost_device_is_told_though_kp_says_nothing(device: Any) -> None:
    driver = device.driver
    x, y = device.alloc(32, Usage.EDGE), device.alloc(32, Usage.EDGE)
    driver.submit(driver.record([add(driver, reads(x.memory), writes(y.memory), 1)]))
    Manager.opened[-1].is_lost = True
    with pytest.raises(DeviceLost, match="did not come back") as caught:
        device.download(y, 0, np.empty(1, np.uint32))
    assert caught.value.code == "CRT-3300"


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("vk::PhysicalDevice::createDevice: ErrorDeviceLost", Trouble.LOST),
        ("vk::Device::createFence: ErrorOutOfHostMemory", Trouble.MEMORY),
        ("vk::Device::createFence: ErrorUnknown", Trouble.OTHER),
    ],
)
def test_what_kp_raises_is_told_by_its_kind(
    device: Any, monkeypatch: pytest.MonkeyPatch, told: str, kind: Trouble
) -> None:
    def failed(self: Any) -> None:
        raise RuntimeError(told)

    driver = device.driver
    x, y = driver.buffer(32), driver.buffer(32)
    recording = driver.record([add(driver, reads(x), writes(y), 1)])
    monkeypatch.setattr(Sequence, "eval", failed)
    with pytest.raises(DriverFailure, match=told) as caught:
        driver.submit(recording)
    assert caught.value.trouble is kind


def test_a_shader_that_kp_cannot_compile_names_the_operation(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(self: Any, *_: Any) -> Any:
        raise RuntimeError("vk::Device::createComputePipeline: ErrorUnknown")

    monkeypatch.setattr(Manager, "algorithm", failed)
    from clover_rt_vulkan.device import Launches

    x, y = device.alloc(32, Usage.EDGE), device.alloc(32, Usage.EDGE)
    step = Launches(device, [add(device.driver, reads(x.memory), writes(y.memory), 1)])
    with pytest.raises(CompileError, match=r"(?s)kernel add did not compile.*ErrorUnknown"):
        step()


def test_a_device_of_another_name_is_refused(kompute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manager, "name_of", staticmethod(lambda index: "another card"))
    with pytest.raises(DriverFailure, match="is another card, the loader's is"):
        open_vulkan(is_kompute=True)


def test_no_shader_with_an_optional_feature_is_used(device: Any) -> None:
    assert device.driver.features == frozenset()


def test_constants_are_written_into_the_code_as_spirv_opt_does(
    kompute: Any, tmp_path: Path
) -> None:
    from clover_rt_vulkan.library import Library

    library = Library()
    for name in ("linear_few", "attend", "join_picks"):
        ids = library.shaders[name].constants
        given = {key: 3 + i for i, key in enumerate(sorted(ids.values()))}
        given.popitem()
        source, target = tmp_path / "in.spv", tmp_path / "out.spv"
        source.write_bytes(library.code(name))
        defaults = " ".join(f"{key}:{value}" for key, value in given.items())
        tool = Path(sys.executable).parent / "spirv-opt"
        flag = f"--set-spec-const-default-value={defaults}"
        subprocess.run([tool, flag, source, "-o", target], check=True)
        assert kompute.specialised(source.read_bytes(), given) == target.read_bytes()


def test_what_the_build_of_kp_lacks_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program on the path, and none of the headers for one that is no compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BackendUnavailable, match="missing: cmake, make, a C\\+\\+ compiler"
    ) as caught:
        build_kompute.build(tmp_path)
    assert caught.value.code == "CRT-3532"
    assert "apt-get install cmake make g++ python3-dev libvulkan-dev libfmt-dev" in caught.value.fix
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    with pytest.raises(BackendUnavailable, match=r"Python\.h, vulkan/vulkan\.hpp, fmt/format\.h"):
        build_kompute.build(tmp_path)


@pytest.mark.parametrize(
    ("told", "hidden"),
    [
        ("", "a start"),
        ("CMake Error at x:\n no Python\n", "the end"),
        ("a.cpp:1:2: fatal error: no.h\n", "the end"),
        ("/bin/ld: cannot find -lfmt\n", "the end"),
    ],
    ids=["nothing", "CMake", "the compiler", "the linker"],
)
def test_a_build_of_kp_that_fails_shows_what_its_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, hidden: str
) -> None:
    """Behind pip's own first error; where nothing in it tells of an error, its end."""
    log = "a start\n  error: subprocess-exited\n" + "x\n" * 50 + told + "x\n" * 50 + "the end\n"
    monkeypatch.setattr(build_kompute, "needs", lambda environ: [])
    monkeypatch.setattr(build_kompute, "settings", dict)
    done = SimpleNamespace(returncode=1, stdout=log)
    monkeypatch.setattr(build_kompute.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(BackendUnavailable, match=told or "the end") as caught:
        build_kompute.build(tmp_path)
    assert caught.value.code == "CRT-3533" and hidden not in caught.value.evidence


@pytest.mark.parametrize("loads", [True, False])
def test_a_wheel_that_was_built_once_is_built_again_only_where_it_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    """Its libraries go with a new release of the system."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    kept, others = tmp_path / f"kp-0.9.0-{python}-x.whl", ("kp-0.8.1", "kp-0.9.0-cp27")
    kept.write_text("old")
    for name in others:
        (tmp_path / f"{name}-x.whl").touch()
    built = []

    def run(command: tuple[str, ...], **_: Any) -> Any:
        if "wheel" in command:
            assert not kept.exists()
            assert "--no-cache-dir" in command
            kept.write_text("new")
            built.append(command)
        fails = command[-1] == "import kp" and not loads and not built
        return SimpleNamespace(returncode=int(fails), stdout="libfmt.so.9: no such file")

    monkeypatch.setattr(build_kompute, "needs", lambda environ: [])
    monkeypatch.setattr(build_kompute, "settings", dict)
    monkeypatch.setattr(build_kompute.subprocess, "run", run)
    assert build_kompute.install(tmp_path) == kept
    assert len(built) == (0 if loads else 1)
    assert kept.read_text() == ("old" if loads else "new")
    assert len(list(tmp_path.iterdir())) == 1 + len(others)


def test_a_wheel_that_does_not_load_when_it_is_new_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "kp.whl"
    done = {"import kp": SimpleNamespace(returncode=1, stdout="libfmt.so.9: no such file")}
    monkeypatch.setattr(build_kompute, "build", lambda folder: new)
    monkeypatch.setattr(
        build_kompute.subprocess,
        "run",
        lambda command, **_: done.get(command[-1], SimpleNamespace(returncode=0)),
    )
    with pytest.raises(BackendUnavailable, match=r"libfmt\.so\.9: no such file") as caught:
        build_kompute.install(tmp_path)
    assert caught.value.code == "CRT-3533"


class OnKompute(clover_rt_conformance.Suite):
    """The quick lane of the raw driver's cases, through kp."""

    pytestmark = pytest.mark.kompute
    backend = "vulkan"
    device = "llvmpipe"
    # for the lines that rerun a case
    environment: ClassVar[dict[str, str]] = {find.VARIABLE: find.KOMPUTE}
    precision = "exact"
    require: ClassVar[tuple[str, ...]] = HOT

    @classmethod
    def open_device(cls) -> Device:
        return open_vulkan(is_kompute=True)


class TestHotOps(OnKompute):
    cases = HOT_CASES


class TestAGoldenRun(OnKompute):
    cases: ClassVar[tuple[str, ...]] = ("model/clover_tiny/decode/short/release/diffusion_t03",)


@pytest.mark.kompute
def test_the_prompt_of_the_readme_is_answered_and_the_driver_is_shown() -> None:
    words = [sys.executable, "-m", "clover_rt", "run", "--backend", "vulkan"]
    done = subprocess.run(
        [*words, "--device", "llvmpipe", "Sort these numbers: 41, 7, 23."],
        env=os.environ | {find.VARIABLE: find.KOMPUTE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Sorted: 7, 23, 41\n"
    assert "Kompute 0.9" in done.stderr
