"""benchmarks/device_check.sh: what it writes is whole whenever it ends, and it ends in time."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clover_rt import builtin
from clover_rt.spec import Format
from clover_rt.weights import Checkpoint, check_scales, load_weights
from tests.processes import descendants, is_gone

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPT = BENCHMARKS / "device_check.sh"
# tells half of what it finds, starts a process of its own, and hangs
HANGING = """
import json, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(sys.argv[1]).write_text(json.dumps({"half": 1, "child": child.pid}))
time.sleep(600)
"""
# a part whose child, in a session of its own as doctor's are, tells who it is and hangs; the system
# ends it with the part where it is tied
IN_SESSION = """
import os, sys, time
from clover_rt.doctor.child import end_with
if sys.argv[1] == "tied":
    end_with(os.getppid())
print(os.getpid(), file=sys.stderr, flush=True)
time.sleep(600)
"""
ASKING = f"""
import json, os, signal, sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(BENCHMARKS)!r})
import device_parts
from clover_rt.doctor.host import Host

def part(told, given):
    if {{is_deaf}}:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    told.add(half=1)
    tied = "tied" if {{is_deaf}} else "free"
    script = f'exec "$0" -c "$1" {{{{tied}}}} 2> {{{{Path(sys.argv[3]).with_name("pid")}}}}'
    Host.here().run(["sh", "-c", script, sys.executable, {IN_SESSION!r}], os.environ, 600)

device_parts.LATE_S = 0
device_parts.RUN = {{{{"passes": part}}}}
sys.exit(device_parts.main())
"""
# judges two cases, the first of them right, and hangs at the third
JUDGING = f"""
import sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
import device_parts
from clover_rt_conformance import client
from clover_rt_conformance.trial import Outcome, result

class Runner:
    about = {{{{"device": {{{{"name": "a card", "notes": {{{{"arch": "sm_0"}}}}}}}}}}}}
    seen = 0

    def __init__(self, *args):
        self.close = lambda: None

    def run(self, trial, precision, seed):
        self.seen += 1
        if self.seen == 3:
            time.sleep(600)
        return result(trial, precision, Outcome.NATIVE if self.seen == 1 else {{outcome}})

client.Workers = Runner
sys.exit(device_parts.main())
"""
WRONG = """
import json, sys
from pathlib import Path
Path(sys.argv[1]).write_text(json.dumps({"counts": {"failed": 2}, "wrong": "2 cases are wrong"}))
"""
DYING = "import sys; sys.exit('no such card')"
TELLING = """
import json, sys
from pathlib import Path
Path(sys.argv[1]).write_text(json.dumps({"gb_per_s": 7}))
"""


@pytest.fixture(scope="module")
def modules() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def check(modules: None, tmp_path: Path) -> Any:
    """Return a check of eight minutes that was not started."""
    found = importlib.import_module("device_check")
    names = ("backend", "device", "layers", "vocab", "depths", "repeats", "model", "only")
    given = dict.fromkeys(names) | {"minutes": 8.0, "out": tmp_path / "out.json"}
    return found.Check(argparse.Namespace(**given), tmp_path)


def run(check: Any, name: str, code: str, limit: float = 600.0, *args: str) -> dict[str, Any]:
    """Let a part run some code instead; return what the file says of it."""
    part = next(p for p in check.parts if p.name == name)
    check.limit_s = lambda part: limit
    check.command = lambda part, limit, found: [sys.executable, "-c", code, *args, str(found)]
    check.run(part)
    told: dict[str, Any] = json.loads(check.args.out.read_text())["parts"][name]
    return told


def test_a_part_that_hangs_is_ended_with_all_it_started_and_keeps_what_it_found(check: Any) -> None:
    told = run(check, "passes", HANGING, 5.0)
    assert (told["state"], told["half"]) == ("not finished", 1)
    assert "its time was up" in told["reason"]
    assert is_gone(told["child"])


@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_part_that_is_ended_leaves_no_process_of_another_session(
    is_deaf: bool, check: Any, tmp_path: Path
) -> None:
    code, given = ASKING.format(is_deaf=is_deaf), json.dumps({"limit_s": 600})
    told = run(check, "passes", code, 8.0, "passes", given)
    assert (told["state"], told["half"]) == ("not finished", 1)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_part_that_nobody_ends_ends_itself_with_its_children(tmp_path: Path) -> None:
    given = json.dumps({"limit_s": 8})
    found = tmp_path / "found.json"
    command = [sys.executable, "-c", ASKING.format(is_deaf=False), "passes", given, str(found)]
    assert subprocess.run(command).returncode == 128 + signal.SIGALRM
    assert json.loads(found.read_text()) == {"half": 1}
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("outcome", "state", "right"),
    [("Outcome.NATIVE", "not finished", 2), ("Outcome.FAILED", "failed", 1)],
)
def test_cases_that_were_right_before_the_time_was_up_are_no_failure(
    outcome: str, state: str, right: int, check: Any
) -> None:
    given = json.dumps({"backend": "cpu", "device": None, "limit_s": 600})
    name = "conformance block_scan fast"
    told = run(check, name, JUDGING.format(outcome=outcome), 8.0, name, given)
    assert (told["state"], told["done"], told["right"]) == (state, 2, right)
    assert told["total"] > 2
    assert told["about"]["device"]["notes"] == {"arch": "sm_0"}
    assert ("1 of 2 cases are wrong" in told["reason"]) == (state == "failed")
    hot = run(check, "passes", TELLING)["hot_ops_are_right"]
    assert hot is (None if state == "not finished" else False)


def test_a_part_that_finds_wrong_results_has_failed_with_that_reason(check: Any) -> None:
    told = run(check, "conformance block_scan fast", WRONG)
    assert (told["state"], told["reason"]) == ("failed", "2 cases are wrong")
    assert told["counts"] == {"failed": 2}


def test_a_part_that_dies_has_failed_with_what_it_said_last(check: Any) -> None:
    told = run(check, "model", DYING)
    assert told["state"] == "failed"
    assert "code 1" in told["reason"] and "no such card" in told["reason"]


def test_a_part_that_ends_well_is_done_and_the_others_are_not_reached(check: Any) -> None:
    assert run(check, "bandwidth", TELLING)["state"] == "done"
    report = json.loads(check.args.out.read_text())
    others = {p["state"] for name, p in report["parts"].items() if name != "bandwidth"}
    assert others == {"not reached"}


def test_without_the_device_doctor_alone_looks_at_the_machine(check: Any) -> None:
    assert not any(check.missing(part) for part in check.parts)
    run(check, "open", WRONG)
    assert [part.name for part in check.parts if not check.missing(part)] == ["doctor"]


def test_times_need_a_checkpoint_that_was_made_or_given(check: Any) -> None:
    run(check, "checkpoint", DYING)
    missing = {part.name for part in check.parts if check.missing(part)}
    assert missing == {"passes", "kernels"}
    check.args.model = "a folder"
    assert not any(check.missing(part) for part in check.parts)


def test_a_plugin_is_not_blamed_for_a_part_that_is_told_to_end(
    modules: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kernel raises is its plugin's failure, SystemExit too, but for KeyboardInterrupt."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("device_parts").stop(signal.SIGTERM, None)


def test_times_say_whether_the_hot_ops_were_right(check: Any, modules: None) -> None:
    names = importlib.import_module("device_check").JUDGED
    assert run(check, "passes", TELLING)["hot_ops_are_right"] is None
    for name in names:
        check.report["parts"][name] = {"state": "done"}
    assert run(check, "kernels", TELLING)["hot_ops_are_right"] is True
    # a part that dies has judged nothing
    run(check, names[0], DYING)
    assert run(check, "kernels", TELLING)["hot_ops_are_right"] is None
    run(check, names[1], WRONG)
    assert run(check, "kernels", TELLING)["hot_ops_are_right"] is False


def test_shares_fill_eight_minutes_and_a_hanging_part_takes_no_other_parts_share(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("device_check")
    assert sum(part.share_s for part in module.PARTS) + module.MARGIN_S == 8 * 60
    assert module.PARTS[0] == module.Part("open", 150)
    now = [check.start]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    for part in check.parts:
        # each one uses all that it may
        limit = check.limit_s(part)
        assert limit == pytest.approx(part.share_s)
        now[0] += limit
    assert now[0] == pytest.approx(check.end)


def started(out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [str(SCRIPT), "--backend", "cpu", "--out", str(out), *more]
    environ = os.environ | {"PYTHON": sys.executable}
    # a session of its own, so that what a test leaves can be ended
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, start_new_session=True)


def test_a_device_that_is_not_there_is_told_without_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert started(out, "--device", "none", "--only", "open", "bandwidth").wait() == 1
    report = json.loads(out.read_text())
    assert report["ended"] == "the device was not opened"
    parts = report["parts"]
    assert parts["open"]["state"] == "failed"
    assert parts["open"]["reason"].startswith("CRT-3003: ")
    assert parts["bandwidth"] == {"state": "not reached", "reason": "the device was not opened"}


@pytest.mark.parametrize(
    "arguments",
    [
        *(("--minutes", "abc"), ("--minutes", "-1"), ("--minutes=0",), ("--minutes", "1e1")),
        *(("--out", "/nonexistent/x.json"), ("--work", "/nonexistent"), ("--out", "/")),
    ],
    ids=" ".join,
)
def test_a_wrong_argument_is_told_before_anything_starts(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    environ = os.environ | {"PYTHON": sys.executable}
    command = [str(SCRIPT), *arguments]
    told = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 2
    assert told.stderr.splitlines()[-1].startswith("device_check.sh: error: ")
    assert arguments[0].partition("=")[0] in told.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_is_written_is_whole_however_the_check_is_stopped(
    number: signal.Signals, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    # timeout(1), which the script becomes, passes what it can on; nothing passes SIGKILL on
    process = started(out, "--only", "doctor", "bandwidth", "--work", str(tmp_path))
    while not out.exists() or "reason" not in json.loads(out.read_text())["parts"]["doctor"]:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    process.wait()
    report = json.loads(out.read_text())
    assert report["ended"] == ("running" if number == signal.SIGKILL else "stopped")
    assert report["parts"]["doctor"]["state"] == "not finished"
    assert "when the check was stopped" in report["parts"]["doctor"]["reason"]
    assert report["parts"]["bandwidth"] == {"state": "not reached"}
    if number == signal.SIGKILL:
        # the program behind timeout(1) goes on
        os.killpg(process.pid, signal.SIGTERM)
    else:
        assert not list(tmp_path.glob("clover-check-*"))


def test_a_check_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCHMARKS / "device_check.py"), "--backend", "cpu"]
    more = ["--only", "doctor", "--work", str(tmp_path), "--out", str(out)]
    process = subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL)
    # the part, and a child that doctor asks
    while len(found := descendants(process.pid)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert all(is_gone(pid) for pid in found)


@pytest.mark.parametrize(
    ("words", "minutes"), [((), 8), (("--minutes", "5"), 5), (("--minutes=0.5",), 0.5)]
)
def test_a_check_that_hangs_is_ended_before_its_minutes_are_over(
    words: tuple[str, ...], minutes: float, modules: None, tmp_path: Path
) -> None:
    # instead of timeout(1), and tells how it was started
    fake = tmp_path / "timeout"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([str(SCRIPT), *words], env=environ, stdout=subprocess.PIPE, text=True)
    told = done.stdout.split()
    grace = next(word for word in told if word.startswith("--kill-after="))
    end = float(told[told.index(grace) + 1])
    assert 0 < end < end + float(grace.partition("=")[2]) < 60 * minutes
    # the program's own end comes first, with what it waits for its parts
    module = importlib.import_module("device_check")
    assert end > 60 * minutes - module.MARGIN_S + module.GRACE_S


@pytest.mark.parametrize("part", ["open", "doctor"])
def test_machine_and_devices_are_told_before_anything_can_hang(
    part: str, modules: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = importlib.import_module("device_parts")

    def hang(*args: Any, **settings: Any) -> None:
        raise SystemExit

    for name in ("clover_rt.doctor.examine", "clover_rt.plugins.open_device"):
        monkeypatch.setattr(name, hang)
    told = parts.Told(tmp_path / "found.json")
    with pytest.raises(SystemExit):
        parts.RUN[part](told, {"backend": "cpu", "device": None})
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["machine"]["cores"] == os.cpu_count()
    (backend,) = found["backends"]
    assert (backend["name"], backend["status"]) == ("cpu", "usable")
    assert backend["devices"][0]["id"] == "cpu" and "notes" in backend["devices"][0]


def test_without_time_nothing_is_started_and_the_file_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    process = started(out, "--minutes", "0.1")
    assert process.wait() == 1
    report = json.loads(out.read_text())
    assert {part["state"] for part in report["parts"].values()} == {"not reached"}
    assert report["ended"] == "complete"


@pytest.mark.full
def test_the_cpu_passes_with_a_small_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = ("--model", str(builtin.path()), "--depths", "0", "--repeats", "1")
    process = started(out, *small, "--minutes", "60", "--work", str(tmp_path))
    process.wait()
    report = json.loads(out.read_text())
    wrong = {n: p.get("reason") for n, p in report["parts"].items() if p["state"] != "done"}
    assert wrong == {}
    parts = report["parts"]
    assert parts["conformance expert_gemm fast"]["counts"]["native"] > 0
    assert all(run["same_tokens"] for run in parts["model"]["exact"].values())
    timed = parts["passes"]["depth 0"]["results"][0]
    assert timed["preview"]["of_bandwidth"] > 0 and timed["decode"]["weight_gigabytes"] > 0
    assert {"expert_gemm", "block_scan"} <= parts["kernels"]["preview"]["ops"].keys()


@pytest.mark.full
@pytest.mark.parametrize("form", [Format.Q4, Format.Q8])
def test_a_packed_checkpoint_of_the_geometry_loads_and_is_scaled_by_fan_in(
    form: Format, modules: None, tmp_path: Path
) -> None:
    make = importlib.import_module("make_release")
    make.make_packed(tmp_path, form, layers=1, vocab=512)
    checkpoint = Checkpoint.open(tmp_path)
    check_scales(checkpoint.tensors)
    weights = load_weights(checkpoint)
    assert weights["layers.0.expert_up"].format is form
    assert weights["head"].format is Format.Q8
    for name in ("layers.0.qkv", "layers.0.out"):
        values = weights[name].whole().values("float32")
        # clipping at three deviations and rounding to 2.5 steps of one change it by 2 %
        assert values.std() * values.shape[-1] ** 0.5 == pytest.approx(1, abs=0.05)
        assert abs(values.mean()) * values.shape[-1] ** 0.5 < 0.01
