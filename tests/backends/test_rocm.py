"""The rocm backend without a card: which engine and device it takes and why, when it records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from clover_rt.backend import DeviceInfo, Probe
from clover_rt.cli.backends import detail, table
from clover_rt.errors import BackendUnavailable, CompileError, DeviceLost, OutOfMemory
from clover_rt.ops import HOT, OPS
from clover_rt.plugins import Status, choose
from clover_rt.spec import DType, Precision
from clover_rt_conformance import Suite
from clover_rt_conformance.reference_device import ReferenceDevice
from clover_rt_cuda import backend as cuda_backend
from clover_rt_cuda.backend import INTERPRET, INTERPRETER
from clover_rt_rocm.choice import decide
from clover_rt_rocm.hip import find, recording
from clover_rt_rocm.variables import architectures, told, wrong_override
from tests.processes import is_gone

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


NO_CODE = Probe(
    (card(0, 8, arch="gfx1032"),),
    "torch 2.9 has code for gfx1032, not for gfx1201 (AMD Radeon AI PRO R9700)",
    "install another torch",
)


def test_a_larger_card_that_torch_has_no_code_for_is_told_with_the_reason() -> None:
    small = replace(other(0, 8), name="gfx1032")
    first, *rest = decided(NO_CODE, Probe((small, other(1, 32))))
    assert (first.id, first.notes["chosen"]) == (
        "hip:0",
        f"the only AMD card that Triton can drive; {NO_CODE.problem}",
    )
    why = {d.id: d.only_by_name for d in rest}
    assert why["opencl:1"] == f"hip:0 comes first;\nnot Triton: {NO_CODE.problem}"
    # it is the card that Triton drives
    assert why["opencl:0"] == "hip:0 comes first"


def test_a_card_that_only_opencl_sees_is_counted() -> None:
    first = chosen(Probe((card(),)), Probe((other(0), other(1))))
    assert first.notes["chosen"] == "the only AMD card that Triton can drive"


def test_where_nothing_is_taken_the_error_has_both_engines_problems_and_fixes() -> None:
    hip = Probe(problem="torch finds no usable card", fix="look at the driver")
    pocl = DeviceInfo("opencl:0", "a processor", "cpu", is_software=True)
    with pytest.raises(BackendUnavailable) as caught:
        chosen(hip, Probe((pocl,)))
    told = caught.value.evidence
    assert "Triton: torch finds no usable card: look at the driver" in told
    assert "OpenCL: none of its devices is an AMD GPU: install your card's OpenCL driver" in told


def test_backends_tells_what_each_engine_lacks_on_a_line_of_its_own() -> None:
    pocl = DeviceInfo("opencl:0", "a processor", "cpu", is_software=True)
    found = decided(Probe(problem="torch is built without ROCm", fix="install it"), Probe((pocl,)))
    row = Status("rocm", "rocm", "0.1.0", "1.1", "usable", "", devices=found)
    first, triton, opencl = table([row]).splitlines()[1:]
    assert (
        first.strip() == "device opencl:0: a processor (it is a software device: only by --device)"
    )
    assert triton == f"{'':8}Triton: torch is built without ROCm: install it"
    assert opencl.startswith(f"{'':8}OpenCL: none of its devices is an AMD GPU: install")
    assert detail(row).splitlines()[5:8] == [line[6:] for line in (first, triton, opencl)]


def test_opencls_problem_is_told_beside_triton_devices_that_are_not_taken() -> None:
    with pytest.raises(BackendUnavailable) as caught:
        chosen(Probe((INTERPRETER,), "torch is built without ROCm", "install it"), NO_OPENCL)
    assert "Triton: torch is built without ROCm: install it" in caught.value.evidence
    assert "OpenCL: no OpenCL platform: install" in caught.value.evidence


def test_what_is_known_of_recording_is_told_of_a_card_that_is_named_too() -> None:
    graphics = card(0, 64, "integrated", chosen="passes are not recorded: signal 11")
    named = choose("rocm", Probe(decided(Probe((graphics,)))), "hip:0")
    assert named.notes["chosen"] == "by its name; passes are not recorded: signal 11"


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


@pytest.mark.parametrize(
    "name",
    ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"],
)
def test_a_card_that_a_variable_may_hide_is_not_taken_through_opencl(name: str) -> None:
    with pytest.raises(BackendUnavailable, match=f"{name}=-1 is set"):
        chosen(NO_TORCH, Probe((other(),)), **{name: "-1"})
    # torch heeds it, so that what torch shows may be taken
    assert chosen(Probe((card(),)), Probe((other(),)), **{name: "-1"}).id == "hip:0"


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
    assert named.notes["chosen"] == "by its name"


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
        monkeypatch.setattr(find, "lacking", lambda: "")
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
    assert probe.problem == "torch 2.9.0+rocm7.0 has code for gfx1100, not for gfx1151 (Radeon)"
    assert (
        "get_arch_list" in probe.fix
        and "pip install --force-reinstall torch --index-url" in probe.fix
    )


def test_a_torch_that_does_not_tell_its_architectures_is_believed(torch: Any) -> None:
    torch([], properties("gfx1151"))
    assert [d.notes["arch"] for d in find.probe().devices] == ["gfx1151"]


def test_a_driver_that_raises_is_a_problem_and_no_error(torch: Any) -> None:
    torch(["gfx1100"], SimpleNamespace(name="a card without an architecture"))
    probe = find.probe()
    assert "cannot ask for cards: AttributeError" in probe.problem
    assert "clover-rt doctor" in probe.fix


def test_a_torch_that_cannot_be_loaded_is_told_as_such_with_a_command(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(["gfx1100"])
    monkeypatch.setitem(sys.modules, "torch", None)
    probe = find.probe()
    assert probe.problem.startswith("torch cannot be imported: ModuleNotFoundError")
    assert "pip install --force-reinstall torch --index-url" in probe.fix


def test_a_triton_that_cannot_be_loaded_is_told_as_such_when_a_card_is_opened() -> None:
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "from clover_rt.errors import BackendUnavailable\n"
        "from clover_rt.backend import DeviceInfo\n"
        "from clover_rt_rocm.backend import RocmBackend\n"
        "try: RocmBackend().open(DeviceInfo('hip:0', 'a card'))\n"
        "except BackendUnavailable as error: print(error.code, error.fix)\n"
    )
    environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True
    )
    assert done.stdout.startswith("CRT-3522 ") and "whl/rocm" in done.stdout


def test_a_torch_without_a_card_points_to_doctor(torch: Any) -> None:
    torch(["gfx1100"])
    assert "finds no usable card" in find.probe().problem
    assert "clover-rt doctor" in find.probe().fix


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_backend, "find_spec", lambda name: None)
    assert find.probe().problem == "torch and triton cannot be imported"
    assert "pip install --force-reinstall torch --index-url" in find.probe().fix


def test_a_triton_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_backend, "triton_version", lambda: "3.3.1+rocm6.4")
    assert find.probe().problem.startswith("triton 3.3.1+rocm6.4 is too old")
    assert "pip install --force-reinstall torch --index-url" in find.probe().fix


def test_a_torch_of_another_kind_is_not_imported() -> None:
    script = (
        "import sys; from clover_rt_rocm.hip import find\n"
        "print(find.probe().problem, 'torch' in sys.modules)"
    )
    environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True)
    assert done.stdout.decode().strip() == "torch is built without ROCm False"


def silent(done: int, total: int, what: str) -> None:
    """Hear of progress, and do nothing."""


class FakeTrial:
    """Counts its calls, and sees what is kept while it runs; an answer that is an error is raised.

    left  the file that is kept while it runs, as a process that is killed leaves it
    """

    def __init__(self, folder: Path, answer: str | BaseException = "") -> None:
        self.folder, self.answer, self.calls = folder, answer, 0
        self.seen, self.left = "", b""

    def __call__(self, info: DeviceInfo, tell: Any) -> str:
        self.calls += 1
        self.seen = recording.told(info, self.folder)
        kept = [path.read_bytes() for path in self.folder.glob("*.json")]
        (self.left,) = [data for data in kept if b'"started"' in data]
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def asked(self, info: DeviceInfo) -> bool:
        return recording.is_safe(info, silent, self, self.folder)


def left_behind(folder: Path, **changes: str) -> None:
    """Leave in a folder what a process that is killed in a trial leaves, with changes."""
    trial = FakeTrial(folder)
    trial.asked(card())
    (kept,) = folder.glob("*.json")
    kept.write_text(json.dumps({**json.loads(trial.left), **changes}))


def ended() -> str:
    """Return how a trial names a process that has ended: its number, and when it started."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return recording._process(process.pid)


def test_recording_is_off_until_the_trial_passes_and_is_tried_once(tmp_path: Path) -> None:
    trial = FakeTrial(tmp_path)
    assert recording.told(card(), tmp_path) == ""
    assert trial.asked(card()) and trial.asked(card())
    assert trial.calls == 1
    assert trial.seen == "passes are not recorded: another process tries it now"
    assert recording.told(card(), tmp_path) == "passes are recorded as graphs"


def test_a_trial_that_fails_leaves_recording_off_with_the_reason_and_how_to_try_again(
    tmp_path: Path,
) -> None:
    trial = FakeTrial(tmp_path, "the trial ended by signal 11: nothing")
    assert not trial.asked(card()) and not trial.asked(card())
    assert trial.calls == 1
    told = recording.told(card(), tmp_path)
    assert "signal 11" in told and f"to try again, remove {tmp_path}" in told


def test_a_trial_that_ends_with_the_machine_is_not_started_again(tmp_path: Path) -> None:
    left_behind(tmp_path, boot="of an earlier start", process=ended())
    again = FakeTrial(tmp_path)
    assert not again.asked(card())
    assert again.calls == 0
    told = recording.told(card(), tmp_path)
    assert "may have hung" in told and f"remove {tmp_path}" in told


def test_a_trial_whose_process_was_killed_is_started_again(tmp_path: Path) -> None:
    left_behind(tmp_path, process=ended())
    told = recording.told(card(), tmp_path)
    assert told == (
        "passes are not recorded: an earlier trial was stopped (the next run tries again)"
    )
    again = FakeTrial(tmp_path)
    assert again.asked(card())
    assert again.calls == 1


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_program_that_is_ended_in_a_trial_tries_again(tmp_path: Path, name: str) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from clover_rt.backend import DeviceInfo\n"
        "from clover_rt_rocm.hip import recording\n"
        "def trial(info, tell):\n"
        "    print('started', flush=True)\n"
        "    time.sleep(600)\n"
        f"info = DeviceInfo('hip:0', 'Radeon 32', notes={dict(card().notes)})\n"
        "recording.is_safe(info, print, trial, Path(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        assert "another process" in recording.told(card(), tmp_path)
        process.send_signal(getattr(signal, name))
    assert "an earlier trial was stopped" in recording.told(card(), tmp_path)
    assert FakeTrial(tmp_path).asked(card())


def test_a_trial_that_another_process_makes_is_left_to_it(tmp_path: Path) -> None:
    left_behind(tmp_path)
    second = FakeTrial(tmp_path)
    assert not second.asked(card())
    assert second.calls == 0
    assert "another process" in recording.told(card(), tmp_path)


def test_a_process_that_got_the_number_of_a_killed_one_does_not_pass_for_it(
    tmp_path: Path,
) -> None:
    left_behind(tmp_path, process=f"{os.getpid()} 0")
    assert FakeTrial(tmp_path).asked(card())


@pytest.mark.parametrize(
    "stop",
    [KeyboardInterrupt(), SystemExit(143), recording.NotTried("it cannot be started")],
    ids=["ctrl-c", "signal", "not tried"],
)
def test_a_trial_that_is_stopped_is_made_by_the_next_run(
    tmp_path: Path, stop: BaseException
) -> None:
    trial = FakeTrial(tmp_path, stop)
    if isinstance(stop, recording.NotTried):
        assert not trial.asked(card())
    else:
        with pytest.raises(type(stop)):
            trial.asked(card())
    assert "the next run tries again" in recording.told(card(), tmp_path)
    again = FakeTrial(tmp_path)
    assert again.asked(card())
    assert again.calls == 1


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


@pytest.fixture
def trial_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return trial_of(code): make a trial run this instead, in a process of its own."""
    real = subprocess.Popen

    def use(code: str) -> None:
        def start(command: list[str], **options: Any) -> Any:
            assert command[1:] == ["-m", "clover_rt_rocm.hip.trial", "hip:0"]
            return real([sys.executable, "-c", code], **options)

        monkeypatch.setattr(recording.subprocess, "Popen", start)

    return use


def kill(name: str) -> str:
    return f"import os, signal; os.kill(os.getpid(), signal.{name})"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("", ""),
        ("import sys; sys.exit('one differs')", "exit code 1: one differs"),
        (kill("SIGSEGV"), "signal 11: it said nothing"),
        (kill("SIGKILL"), "signal 9: it said nothing"),
    ],
    ids=["passed", "wrong", "crash", "killed"],
)
def test_the_ends_of_a_trial_are_told_apart(trial_of: Any, code: str, says: str) -> None:
    trial_of(code)
    found = recording.child(card(), silent)
    assert says in found
    assert bool(found) is bool(says)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (kill("SIGTERM"), "stopped by SIGTERM"),
        # a program in the background of a shell is started with it ignored
        (
            "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); " + kill("SIGINT"),
            "SIGINT",
        ),
        ("import sys; print('12 bytes are free', file=sys.stderr); sys.exit(75)", "12 bytes"),
    ],
    ids=["terminated", "ctrl-c", "no memory"],
)
def test_what_says_nothing_of_the_card_is_no_outcome(trial_of: Any, code: str, says: str) -> None:
    trial_of(code)
    with pytest.raises(recording.NotTried, match=says):
        recording.child(card(), silent)


def test_a_trial_that_hangs_is_ended_and_its_outcome_kept(
    trial_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trial_of("import time; time.sleep(600)")
    monkeypatch.setattr(recording, "TRIAL_S", 1)
    told: list[tuple[int, int, str]] = []
    assert not recording.is_safe(card(), lambda *progress: told.append(progress), folder=tmp_path)
    assert "did not end in 1 s (to try again" in recording.told(card(), tmp_path)
    # else a bar would stay, and a signal be taken for one while kernels compile
    assert [(done, total) for done, total, _ in told] == [(0, 1), (1, 1)]


STARTS = """
import sys
from clover_rt.backend import DeviceInfo
from clover_rt_rocm.hip import recording
sys.executable = sys.argv[1]
recording.child(DeviceInfo("hip:0", "a card"), lambda *progress: None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_trial_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    stays = (
        "import os, time; from clover_rt_rocm.hip.trial import end_with_stdin; end_with_stdin(); "
        f"open('{told}.part', 'w').write(str(os.getpid())); os.replace('{told}.part', '{told}'); "
        "time.sleep(600)"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{stays}"\n')
    python.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", STARTS, str(python)]) as program:
        while not told.exists():
            assert program.poll() is None
            time.sleep(0.05)
        program.kill()
    assert is_gone(int(told.read_text()))


def test_progress_is_told_before_a_trial_starts_and_at_its_end(trial_of: Any) -> None:
    trial_of("")
    told: list[tuple[int, int, str]] = []
    recording.child(card(), lambda *progress: told.append(progress))
    (first, last) = told[0], told[-1]
    assert first[0] == 0 and last[0] == last[1] == recording.TRIAL_S
    assert "trial of recorded passes" in first[2]


def test_a_card_without_memory_for_a_trial_ends_it_as_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clover_rt_rocm.hip import device, trial

    def full(info: DeviceInfo, records: bool) -> Any:
        raise OutOfMemory("a scratch buffer needs 64 bytes", "free 0 of 8 bytes", "end others")

    monkeypatch.setattr(device, "HipDevice", full)
    monkeypatch.setattr(trial.find, "cards", lambda: Probe((card(),)))
    assert trial.main(["hip:0"]) == recording.NO_MEMORY
    assert "free 0 of 8 bytes" in capsys.readouterr().err


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
    told: list[Any] = []
    asked: list[str] = []

    def answer(info: DeviceInfo, tell: Any) -> bool:
        asked.append(info.id)
        tell(0, 1, "trying")
        return is_safe

    monkeypatch.setattr(recording, "is_safe", answer)
    made = hip_device(card(1))
    # to open a card tries nothing: who is to be told of progress is known later
    assert asked == []
    made.on_progress = lambda *progress: told.append(progress)
    assert made.has_graphs is is_safe and made.has_graphs is is_safe
    assert asked == ["hip:1"] and told == [(0, 1, "trying")]
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
    with pytest.raises(DeviceLost) as caught, Guard(made, "download"):
        raise RuntimeError("HIP error: an illegal memory access was encountered")
    assert "HSA_OVERRIDE_GFX_VERSION=11.0.0" in caught.value.evidence
    assert "arch gfx1201" in caught.value.evidence
    assert "HIP_LAUNCH_BLOCKING=1" in caught.value.fix


def test_a_kernel_that_does_not_compile_names_the_other_engine_and_backends(
    hip_device: Any,
) -> None:
    from clover_rt_cuda.guard import Guard

    made = hip_device(card(), records=False)
    with pytest.raises(CompileError) as caught, Guard(made, "compile", compiles=True):
        raise RuntimeError("PassManager::run failed")
    for way in ("--device opencl:N", "--backend vulkan", "--backend cpu"):
        assert way in caught.value.fix


def test_a_card_that_is_lost_as_it_is_opened_is_told_with_overrides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from clover_rt_cuda import device as cuda
    from clover_rt_rocm.hip.device import HipDevice

    def lost(place: Any) -> Any:
        raise RuntimeError("HIP error: unspecified launch failure")

    monkeypatch.setattr(cuda, "Card", lost)
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
    with pytest.raises(DeviceLost, match="HSA_OVERRIDE_GFX_VERSION=11.0.0"):
        HipDevice(card())


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


def test_the_trial_records_a_layer_whose_products_and_cache_are_bfloat16() -> None:
    import triton.language as tl

    from clover_rt_cuda.ahead import Recorder, programs
    from clover_rt_rocm.hip.trial import TRIED, Bound

    fast = {op for op, precision in TRIED if precision is Precision.FAST}
    assert fast == {"attention", "moe"}
    for op in fast:
        spec = OPS[op]
        case = max(spec.cases(), key=lambda c: c.axes["T"] * c.table.has_preview)
        bound = Bound(Recorder(), spec, case, Precision.FAST)
        constants = [v for launch in programs([bound.step]) for v in launch.meta.values()]
        assert tl.bfloat16 in constants
        caches = [bound.sig.dtype(o.name) for o in spec.operands if o.dtype is DType.KV]
        assert all(str(dtype) == "bfloat16" for dtype in caches)
