"""The rocm backend without a card: which engine and device it takes and why, when it records."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from clover_rt.backend import DeviceInfo, Probe
from clover_rt.errors import BackendUnavailable, DeviceLost
from clover_rt.ops import HOT
from clover_rt.plugins import choose
from clover_rt_conformance import Suite
from clover_rt_conformance.reference_device import ReferenceDevice
from clover_rt_cuda.backend import INTERPRET, INTERPRETER
from clover_rt_rocm.choice import decide
from clover_rt_rocm.hip import find, recording
from clover_rt_rocm.variables import architectures, told, wrong_override

ENVIRONMENT = {INTERPRET: "1", "TRITON_INTERPRET": "1"}
GB = 1 << 30


def card(index: int = 0, gb: int = 32, kind: str = "discrete", **notes: str) -> DeviceInfo:
    given = {"engine": "triton", "arch": "gfx1201", "hip": "7.0", **notes}
    return DeviceInfo(f"hip:{index}", f"Radeon {gb}", kind, gb * GB, notes=given)


def other(index: int = 0, gb: int = 32, kind: str = "discrete", by_name: str = "") -> DeviceInfo:
    notes = {"engine": "opencl"}
    return DeviceInfo(
        *(f"opencl:{index}", "gfx1201", kind, gb * GB), notes=notes, only_by_name=by_name
    )


NO_TORCH = Probe(problem="torch and triton cannot be imported", fix="install")
NO_OPENCL = Probe(problem="no OpenCL platform", fix="install")


def decided(
    hip: Probe = NO_TORCH, opencl: Probe = NO_OPENCL, override: str = "", **environ: str
) -> Any:
    return decide(hip, opencl, override, environ)


def chosen(*args: Any, **kwargs: Any) -> DeviceInfo:
    return choose("rocm", Probe(decided(*args, **kwargs)), None)


def test_triton_comes_before_opencl_where_torch_is_built_for_the_card() -> None:
    first, second = decided(Probe((card(),)), Probe((other(),)))
    assert (first.id, first.notes["chosen"]) == ("hip:0", "the only AMD card")
    assert (second.id, second.only_by_name) == ("opencl:0", "hip:0 comes first")


def test_opencl_is_taken_with_the_reason_where_torch_is_not_there() -> None:
    first = chosen(NO_TORCH, Probe((other(),)))
    assert first.id == "opencl:0"
    assert first.notes["chosen"] == (
        "the only AMD card; not Triton: torch and triton cannot be imported"
    )


def test_the_card_with_the_most_memory_is_taken() -> None:
    first = chosen(Probe((card(0, 8), card(1, 32), card(2, 16))))
    assert (first.id, first.notes["chosen"]) == ("hip:1", "the AMD card with the most memory")


def test_a_card_of_opencl_comes_before_a_processors_graphics_of_triton() -> None:
    small = card(0, 64, "integrated")
    assert chosen(Probe((small,)), Probe((other(1, 16),))).id == "opencl:1"


def test_a_processors_graphics_alone_is_refused_with_how_to_ask() -> None:
    pocl = DeviceInfo("opencl:0", "a processor", "cpu", is_software=True)
    with pytest.raises(BackendUnavailable, match="it is part of a processor") as caught:
        chosen(Probe((card(0, 64, "integrated"),)), Probe((pocl,)))
    assert caught.value.fix == "name one to use it: --device hip:0"


def test_a_card_that_a_variable_may_hide_is_not_taken_through_opencl() -> None:
    with pytest.raises(BackendUnavailable, match="HIP_VISIBLE_DEVICES=1 is set"):
        chosen(NO_TORCH, Probe((other(),)), HIP_VISIBLE_DEVICES="1")
    # torch heeds it, so that what torch shows may be taken
    assert chosen(Probe((card(),)), Probe((other(),)), HIP_VISIBLE_DEVICES="1").id == "hip:0"


def test_an_override_that_contradicts_the_card_leaves_it_to_its_name() -> None:
    with pytest.raises(BackendUnavailable, match="says gfx1100"):
        chosen(Probe((card(),)), Probe((other(),)), override="it says gfx1100")


def test_software_and_other_vendors_are_never_taken_by_default() -> None:
    interpreter = INTERPRETER
    geforce = other(1, 24, by_name="it is not an AMD GPU")
    pocl = DeviceInfo("opencl:0", "a processor", "cpu", is_software=True)
    with pytest.raises(BackendUnavailable) as caught:
        chosen(Probe((interpreter,)), Probe((pocl, geforce)))
    assert "it is not an AMD GPU" in caught.value.evidence
    first, *rest = decided(Probe((interpreter, card())), Probe((pocl, geforce)))
    assert first.id == "hip:0"
    assert all(d.is_software or d.only_by_name for d in rest)
    named = choose("rocm", Probe((first, *rest)), "opencl:1")
    assert named.notes["chosen"] == "by its name; not by itself, since it is not an AMD GPU"


def node(folder: Path, number: int, version: int) -> None:
    (folder / str(number)).mkdir()
    (folder / str(number) / "properties").write_text(
        f"cpu_cores_count 0\ngfx_target_version {version}\n"
    )


def test_architectures_are_those_of_the_compute_driver(tmp_path: Path) -> None:
    for number, version in ((0, 0), (1, 120001), (2, 90010)):
        node(tmp_path, number, version)
    assert architectures(tmp_path) == {1: "gfx1201", 2: "gfx90a"}
    assert architectures(tmp_path / "absent") == {}


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, ""),
        ({"HSA_OVERRIDE_GFX_VERSION": "12.0.1"}, ""),
        ({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}, "the card of node 1 is gfx1201"),
        ({"HSA_OVERRIDE_GFX_VERSION": "gfx1201"}, "the card of node 1 is gfx1201"),
        ({"HSA_OVERRIDE_GFX_VERSION_1": "11.0.0"}, "HSA_OVERRIDE_GFX_VERSION_1=11.0.0"),
        ({"HSA_OVERRIDE_GFX_VERSION_7": "11.0.0"}, ""),
        (
            {"HSA_OVERRIDE_GFX_VERSION": "11.0.0", "HSA_OVERRIDE_GFX_VERSION_1": "12.0.1"},
            "",
        ),
    ],
    ids=["none", "the same", "another", "malformed", "one node", "no node", "mended for the node"],
)
def test_an_override_is_compared_with_what_the_card_is(
    tmp_path: Path, environ: dict[str, str], says: str
) -> None:
    node(tmp_path, 1, 120001)
    found = wrong_override(environ, tmp_path)
    assert says in found
    assert bool(found) is bool(says)


def test_a_failure_tells_the_variables_that_are_set() -> None:
    environ = {"HSA_OVERRIDE_GFX_VERSION_2": "11.0.0", "ROCR_VISIBLE_DEVICES": "0", "HOME": "/x"}
    assert told(environ) == "HSA_OVERRIDE_GFX_VERSION_2=11.0.0, ROCR_VISIBLE_DEVICES=0"
    assert told({}) == "no override set"


class FakeTorch(SimpleNamespace):
    """What find asks of a torch that is built for ROCm."""

    def __init__(self, archs: list[str], *cards: Any) -> None:
        super().__init__(
            __version__="2.9.0+rocm7.0",
            version=SimpleNamespace(hip="7.0.2"),
            cuda=SimpleNamespace(
                is_available=lambda: bool(cards),
                get_arch_list=lambda: archs,
                device_count=lambda: len(cards),
                get_device_properties=lambda i: cards[i],
            ),
        )


def properties(arch: str, is_integrated: int = 0) -> Any:
    return SimpleNamespace(
        name="Radeon", gcnArchName=arch, total_memory=GB, is_integrated=is_integrated
    )


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return torch(architectures, cards...): put a torch in the place of the installed one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(INTERPRET, raising=False)

    def install(archs: list[str], *cards: Any) -> None:
        monkeypatch.setitem(sys.modules, "torch", FakeTorch(archs, *cards))
        monkeypatch.setattr(find, "find_spec", lambda name: name)
        monkeypatch.setattr(find, "built_for", lambda: "7.0.2")

    return install


def test_the_cards_of_torch_are_told_with_architecture_and_versions(torch: Any) -> None:
    torch(["gfx1100", "gfx1201"], properties("gfx1201"), properties("gfx1100:xnack-", 1))
    large, small = find.probe().devices
    assert (large.id, large.kind) == ("hip:0", "discrete")
    assert large.notes["engine"] == "triton" and large.notes["hip"] == "7.0.2"
    assert (small.id, small.kind, small.notes["arch"]) == ("hip:1", "integrated", "gfx1100")


def test_a_card_that_torch_has_no_code_for_is_left_out_with_the_reason(torch: Any) -> None:
    torch(["gfx1100"], properties("gfx1151"))
    probe = find.probe()
    assert probe.devices == ()
    assert probe.problem == "torch 2.9.0+rocm7.0 has code for gfx1100, not for gfx1151"
    assert "gfx1151" in probe.fix


def test_a_torch_without_a_card_points_to_doctor(torch: Any) -> None:
    torch(["gfx1100"])
    assert "finds no usable card" in find.probe().problem
    assert "clover-rt doctor" in find.probe().fix


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    assert find.probe().problem == "torch and triton cannot be imported"


def test_a_torch_of_another_kind_is_not_imported() -> None:
    script = (
        "import sys; from clover_rt_rocm.hip import find\n"
        "print(find.probe().problem, 'torch' in sys.modules)"
    )
    environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True)
    assert done.stdout.decode().strip() == "torch is built without ROCm False"


class FakeTrial:
    """Counts its calls, and sees what is kept while it runs."""

    def __init__(self, folder: Path, answer: str = "") -> None:
        self.folder, self.answer, self.calls = folder, answer, 0
        self.seen = ""

    def __call__(self, info: DeviceInfo) -> str:
        self.calls += 1
        self.seen = recording.told(info, self.folder)
        return self.answer

    def asked(self, info: DeviceInfo) -> bool:
        return recording.is_safe(info, self, self.folder)


def test_recording_is_off_until_the_trial_passes_and_is_tried_once(tmp_path: Path) -> None:
    trial = FakeTrial(tmp_path)
    assert recording.told(card(), tmp_path) == ""
    assert trial.asked(card()) and trial.asked(card())
    assert trial.calls == 1
    # a trial that never came back would have left this
    assert trial.seen == "passes are not recorded: an earlier trial did not end"
    assert recording.told(card(), tmp_path) == "passes are recorded as graphs"


def test_a_trial_that_fails_leaves_recording_off_with_the_reason(tmp_path: Path) -> None:
    trial = FakeTrial(tmp_path, "the trial ended by signal 11: nothing")
    assert not trial.asked(card()) and not trial.asked(card())
    assert trial.calls == 1
    assert "signal 11" in recording.told(card(), tmp_path)


def test_a_trial_that_did_not_come_back_is_not_started_again(tmp_path: Path) -> None:
    def lost(info: DeviceInfo) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recording.is_safe(card(), lost, tmp_path)
    again = FakeTrial(tmp_path)
    assert not again.asked(card())
    assert again.calls == 0


@pytest.mark.parametrize("notes", [{"arch": "gfx1100"}, {"hip": "7.1"}], ids=["arch", "version"])
def test_another_architecture_or_version_is_tried_anew(
    tmp_path: Path, notes: dict[str, str]
) -> None:
    trial = FakeTrial(tmp_path)
    assert trial.asked(card()) and trial.asked(card(**notes))
    assert trial.calls == 2
    # two cards of one kind are one trial
    assert trial.asked(replace(card(), id="hip:1"))
    assert trial.calls == 2


def test_where_nothing_can_be_kept_nothing_is_tried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trial = FakeTrial(tmp_path / "file" / "folder")
    assert not trial.asked(card())
    assert trial.calls == 0


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("", ""),
        ("import sys; sys.exit('one differs')", "exit code 1: one differs"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9: it said nothing"),
    ],
    ids=["passed", "wrong", "crash"],
)
def test_the_ends_of_a_trial_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    real = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        assert command[1:] == ["-m", "clover_rt_rocm.hip.trial", "hip:0"]
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(recording.subprocess, "run", run)
    found = recording.child(card())
    assert says in found
    assert bool(found) is bool(says)


@pytest.fixture
def hip_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a maker of a card whose driver is never called."""
    from clover_rt_cuda import device as cuda
    from clover_rt_rocm.hip import device

    monkeypatch.setattr(cuda, "Card", lambda place: SimpleNamespace(place=place))
    monkeypatch.setattr(cuda, "use_cache", lambda arch: None)
    return device.HipDevice


@pytest.mark.parametrize("is_safe", [True, False])
def test_a_card_records_only_where_that_is_safe(
    hip_device: Any, monkeypatch: pytest.MonkeyPatch, is_safe: bool
) -> None:
    monkeypatch.setattr(recording, "is_safe", lambda info: is_safe)
    made = hip_device(card(1))
    assert made.has_graphs is is_safe
    # torch names both vendors' cards alike
    assert str(made.torch) == "cuda:1"
    assert made.driver == "hip 7.0"
    assert hip_device(card(1), records=True).has_graphs


def test_a_lost_card_is_told_with_the_overrides_that_are_set(
    hip_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover_rt_cuda.guard import Guard

    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
    made = hip_device(card(), records=False)
    made.memory = lambda: None
    with pytest.raises(DeviceLost) as caught, Guard(made, "download"):
        raise RuntimeError("HIP error: an illegal memory access was encountered")
    assert "HSA_OVERRIDE_GFX_VERSION=11.0.0" in caught.value.evidence
    assert "arch gfx1201" in caught.value.evidence
    assert "HIP_LAUNCH_BLOCKING=1" in caught.value.fix


class Interpreted(Suite):
    """The Triton engine's cases on the interpreter, in a worker of their own."""

    backend = "rocm"
    device = "interpreter"
    environment: ClassVar[dict[str, str]] = ENVIRONMENT
    timeout_s = 900.0


class TestTheTritonEngine(Interpreted):
    """One case a hot op, and the memory; the kernels are judged whole as the cuda backend's."""

    require: ClassVar[tuple[str, ...]] = HOT
    cases: ClassVar[tuple[str, ...]] = (
        "device/copies",
        "linear/q4-64/T=33,N=65,K=192/residual",
        "expert_gemm/q4-32/T=7/spread",
        "block_scan/H=4,K=16,V=24/commit33",
        "confidence_topk/q4-32/top=8/verify8",
    )


@pytest.mark.full
class TestTheTritonEngineWhole(Interpreted):
    require: ClassVar[tuple[str, ...]] = HOT


class Forgetful(ReferenceDevice):
    """Replays what it recorded without its last step."""

    def capture(self, steps: Any) -> Any:
        return super().capture(steps[:-1])


class Stale(ReferenceDevice):
    """Replays what it recorded on the inputs of the first time."""

    def capture(self, steps: Any) -> Any:
        seen: list[int] = []

        def replay() -> None:
            if not seen:
                super(Stale, self).capture(steps)()
            seen.append(1)

        return replay


@pytest.mark.parametrize(
    ("kind", "says"),
    [(ReferenceDevice, ""), (Forgetful, "of replay 1 differ"), (Stale, "of replay 2 differ")],
)
def test_the_trial_compares_what_is_replayed_with_single_launches(kind: Any, says: str) -> None:
    from clover_rt_rocm.hip.trial import differs

    found = differs(kind())
    assert says in found
    assert bool(found) is bool(says)
