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

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPT = BENCHMARKS / "device_check.sh"
STATES = ("done", "failed", "not reached")
# tells half of what it finds, starts a process of its own, and hangs
HANGING = """
import json, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(sys.argv[1]).write_text(json.dumps({"half": 1, "child": child.pid}))
time.sleep(600)
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


def run(check: Any, name: str, code: str, limit: float = 600.0) -> dict[str, Any]:
    """Let a part run some code instead; return what the file says of it."""
    part = next(p for p in check.parts if p.name == name)
    check.limit_s = lambda part: limit
    check.command = lambda part, limit, found: [sys.executable, "-c", code, str(found)]
    check.run(part)
    told: dict[str, Any] = json.loads(check.args.out.read_text())["parts"][name]
    return told


def test_a_part_that_hangs_is_ended_with_all_it_started_and_keeps_what_it_found(check: Any) -> None:
    told = run(check, "passes", HANGING, limit=5.0)
    assert (told["state"], told["half"]) == ("failed", 1)
    assert "its time was up" in told["reason"]
    gone = False
    for _ in range(100):
        # a zombie that nobody waits for is gone too
        stat = Path(f"/proc/{told['child']}/stat")
        gone = not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
        if gone:
            break
        time.sleep(0.1)
    assert gone


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


def test_times_say_whether_the_hot_ops_were_right(check: Any, modules: None) -> None:
    assert run(check, "passes", TELLING)["hot_ops_are_right"] is False
    for name in importlib.import_module("device_check").JUDGED:
        check.report["parts"][name] = {"state": "done"}
    assert run(check, "kernels", TELLING)["hot_ops_are_right"] is True


def test_shares_fill_eight_minutes_and_a_hanging_part_takes_no_other_parts_share(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("device_check")
    assert sum(part.share_s for part in module.PARTS) + module.MARGIN_S == 8 * 60
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
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)


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
    assert report["parts"]["doctor"]["state"] == "failed"
    assert "when the check was stopped" in report["parts"]["doctor"]["reason"]
    assert report["parts"]["bandwidth"] == {"state": "not reached"}
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob("clover-check-*"))


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
