"""`clover-rt conformance` on a plugin that is right, wrong, crashes, hangs, declines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.conformance_plugin import install

CASE = "rope/H=4,K=32,r=4/commit7"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"))


@pytest.fixture
def command(plugins: Path, tmp_path: Path):
    """Return run(*words) -> (exit code, stdout, stderr) of `clover-rt conformance`."""

    def run(*words: str) -> tuple[int, str, str]:
        code = "import sys; from clover_rt.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", code, "conformance", "--backend", "mine", *words],
            env=os.environ | {"PYTHONPATH": str(plugins)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_right_device_passes_and_the_report_names_what_was_judged(command, tmp_path):
    code, out, err = command("--op", "rope", "--json", "report.json", "--junit", "report.xml")
    assert code == 0, out + err
    report = json.loads((tmp_path / "report.json").read_text())
    counts = report["counts"]
    assert report["passed"] and counts["native"] == counts["total"] > 50
    assert report["device"]["id"] == "whole"
    assert report["plugin"] == {"name": "mine", "version": "1.2", "api": [1, 0]}
    assert report["core"]["version"] and report["machine"]["architecture"]
    assert len(report["cases"]["hash"]) == 16
    worst = report["ops"]["rope"]["largest_error"]
    assert 0 < worst["error"] <= worst["bound"]
    assert worst["tolerance"]["why"]
    assert f"{worst['error']:.1e} of {worst['bound']:.1e}" in out
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert suite.attrib["tests"] == str(counts["total"]) and suite.attrib["failures"] == "0"


def test_a_wrong_answer_names_its_class_and_the_line_that_reruns_it(command):
    code, out, _ = command("--device", "wrong", "--case", CASE, "--precision", "exact")
    assert code == 1
    assert f"failed: {CASE} [exact] (K-04 tail tiles in rows)" in out
    rerun = f"clover-rt conformance --backend mine --device wrong --case {CASE} --precision exact"
    assert f"rerun: {rerun}" in out
    assert "FAILED: 1 total, 1 failed" in out


def test_the_rerun_line_runs_that_one_case(command):
    words = ("--device", "wrong", "--case", CASE, "--precision", "exact", "--json", "-")
    first = json.loads(command(*words)[1])
    line = first["failures"][0]["rerun"].split()
    code, out, _ = command(*line[4:], "--json", "-")
    again = json.loads(out)
    assert code == 1 and again["trials"] == first["trials"] == {f"{CASE} [exact]": "failed"}
    assert again["failures"] == first["failures"]


@pytest.mark.parametrize(("device", "told"), [("crashes", "SIGABRT"), ("hangs", "no answer in")])
def test_a_crash_or_a_hang_is_charged_to_its_case_and_the_run_goes_on(command, device, told):
    others = "output_gate/N=64/T=*"
    words = ("--device", device, "--case", CASE, "--case", others, "--precision", "exact")
    code, out, _ = command(*words, "--timeout", "8", "--json", "-")
    report = json.loads(out)
    assert code == 1
    assert report["trials"].pop(f"{CASE} [exact]") == "crashed"
    assert len(report["trials"]) >= 3 and set(report["trials"].values()) == {"native"}
    detail = "\n".join(report["failures"][0]["detail"])
    assert told in detail
    assert device == "hangs" or "last words" in detail


def test_an_error_that_sticks_to_the_device_is_charged_to_one_case(command):
    others = "output_gate/N=64/T=*"
    words = ("--device", "sticks", "--case", CASE, "--case", others, "--precision", "exact")
    report = json.loads(command(*words, "--json", "-")[1])
    assert report["trials"].pop(f"{CASE} [exact]") == "failed"
    assert set(report["trials"].values()) == {"native"}
    assert "the device is lost" in report["failures"][0]["detail"][0]


def test_declined_is_counted_apart_and_is_a_failure_where_required(command):
    words = ("--device", "declines", "--op", "rope,output_gate", "--precision", "exact")
    code, out, _ = command(*words, "--json", "-")
    report = json.loads(out)
    assert code == 0 and report["counts"]["declined"] > 10
    assert list(report["declined"]) == ["K=64 exceeds 32"]
    code, out, _ = command(*words, "--require", "rope")
    assert code == 1 and "declined: rope/" in out and "rerun: " in out


def test_a_device_that_takes_nothing_does_not_pass(command):
    code, out, _ = command("--device", "declines", "--op", "rope", "--precision", "exact")
    assert code == 1
    assert "no case was run" in out


def test_what_a_kernel_prints_does_not_disturb_the_run(command):
    code, out, _ = command("--device", "prints", "--case", CASE, "--json", "-")
    assert code == 0 and json.loads(out)["counts"]["native"] == 2


def test_a_device_gets_the_variables_that_it_wants_before_it_is_opened(command):
    code, out, err = command("--device", "wanting", "--case", CASE)
    assert code == 0, out + err


def test_a_variable_given_by_hand_is_in_the_rerun_line(command):
    words = ("--device", "wrong", "--env", "A=1", "--case", CASE, "--seed", "3")
    _, out, _ = command(*words)
    assert "--device wrong --env A=1 --case" in out and "--seed 3" in out


def test_a_variable_of_ours_that_is_set_is_in_the_rerun_line(command, monkeypatch):
    monkeypatch.setenv("CLOVER_RT_CPU_THREADS", "1")
    _, out, _ = command("--device", "wrong", "--env", "A=1", "--case", CASE)
    assert "--device wrong --env CLOVER_RT_CPU_THREADS=1 --env A=1 --case" in out


def test_a_device_that_cannot_be_opened_is_an_error_and_not_a_result(command):
    code, out, err = command("--device", "breaks", "--case", CASE)
    assert (code, out) == (3, "")
    assert "no such driver" in err and "CRT-3005" in err
    code, _, err = command("--device", "none", "--case", CASE)
    assert code == 3 and "CRT-3003" in err


def test_software_devices_run_only_by_name(command):
    code, out, _ = command("--case", CASE, "--json", "-")
    assert code == 0 and json.loads(out)["device"]["id"] == "whole"


@pytest.mark.parametrize("flag", ["--json", "--junit"])
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(command, flag):
    # the device cannot be opened either: the file is looked at first
    code, out, err = command("--device", "breaks", "--case", CASE, flag, "/nowhere/report")
    assert (code, out) == (2, "")
    assert f"CRT-1090: {flag} /nowhere/report was given" in err
    assert "No such file or directory" in err


def test_looking_at_a_file_leaves_it_as_it_was(command, tmp_path):
    (tmp_path / "old.json").write_text("old")
    files = ("--json", "old.json", "--junit", "new.xml")
    assert command("--device", "breaks", "--case", CASE, *files)[0] == 3
    assert (tmp_path / "old.json").read_text() == "old"
    assert not (tmp_path / "new.xml").exists()


def test_the_list_can_be_json_in_a_file_or_on_standard_output(command, tmp_path):
    words = ("--list", "--case", CASE, "--precision", "exact", "--json")
    rows = [{"id": CASE, "precision": "exact", "op": "rope", "classes": ["K-04"], "lane": "usual"}]
    code, out, _ = command(*words, "-")
    assert code == 0 and json.loads(out) == {"schema": 1, "cases": rows}
    code, out, _ = command(*words, "list.json")
    assert (code, out) == (0, f"{CASE}\texact\trope\tK-04\n")
    assert json.loads((tmp_path / "list.json").read_text())["cases"] == rows


def test_a_list_has_no_results_to_write_as_junit(command, tmp_path):
    code, out, err = command("--list", "--junit", "report.xml")
    assert (code, out) == (2, "") and "CRT-1061" in err
    assert not (tmp_path / "report.xml").exists()


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("--op", "zzz"), "rms_norm, rope, router_topk"),
        (("--class", "zzz"), "K-01, K-02, K-03"),
        (("--case", "rope/H=4,K=32,r=4/comit7"), CASE),
    ],
)
def test_a_refusal_names_what_there_is(command, words, known):
    err = command(*words)[2]
    assert known in err.split("found: ")[1].split("fix: ")[0]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--op", "ropes"), "did you mean 'rope'"),
        (("--class", "K-99"), "CRT-1060"),
        (("--case", "rope/nothing"), "--list"),
        (("--require", "expert_gem"), "did you mean 'expert_gemm'"),
        (("--timeout", "0"), "not above 0"),
        (("--env", "A"), "not NAME=VALUE"),
    ],
)
def test_a_word_that_no_case_has_is_refused(command, words, hint):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert hint in err


def test_a_choice_of_no_case_is_a_failure(command):
    code, out, _ = command("--op", "rope", "--class", "K-12")
    assert code == 1
    assert "zero cases are a failure" in out


def test_the_list_tells_op_classes_and_lane_and_opens_nothing(command):
    code, out, _ = command("--list", "--device", "breaks", "--class", "K-38")
    lines = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert lines[0] == ["attend/long/keys=4096", "exact", "attend", "K-38"]
    assert ["attend/long/keys=131072", "fast", "attend", "K-38", "full"] in lines


def test_the_full_lane_is_listed_as_not_run_in_the_usual_one(command):
    _, out, _ = command("--class", "K-21", "--json", "-")
    report = json.loads(out)
    assert report["counts"]["not_run"] == 2
    assert "runs in the full lane: --lane full" in report["not_run"]
