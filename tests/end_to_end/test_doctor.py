"""`clover-rt doctor` on this machine: right in what it says, one JSON object, exit codes."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-c", "import sys; from clover_rt.cli import main; sys.exit(main())")


def doctor(*args):
    """Run the command; return (exit code, stdout, stderr)."""
    done = subprocess.run([*COMMAND, "doctor", *args], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


@cache
def here():
    """Return the report of this machine."""
    code, out, err = doctor("--json", "--backend", "cpu")
    assert err == ""
    report = json.loads(out)
    assert report["exit_code"] == code
    return report


def test_the_cpu_backend_works_here():
    report = here()
    assert report["exit_code"] in (0, 1)
    (row,) = report["tests"]
    assert row["backend"] == "cpu" and row["passed"]
    ops = {op["op"]: op for op in row["kernels"]["ops"]}
    assert {"expert_gemm", "block_scan", "confidence_topk"} <= set(ops)
    assert all(op["right"] and not op["wrong"] for op in ops.values())
    assert row["kernels"]["copy"] == ""
    assert row["model"]["tokens"] and row["model"]["text"]


def test_processors_and_memory_are_those_of_the_system():
    report = here()
    assert report["cpu"]["cores"] == os.cpu_count()
    assert report["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert report["memory"]["total"] == pytest.approx(pages, rel=0.01)
    assert 0 < report["memory"]["available"] <= report["memory"]["total"]
    assert report["memory"]["read_gb_per_s"] > 0


def test_nodes_and_drivers_are_told_only_where_they_are():
    report = here()
    for node in report["amd"]["nodes"] + report["nvidia"]["nodes"]:
        assert Path(node["path"]).exists()
    for path in [*report["opencl"]["icds"], *report["vulkan"]["icds"]]:
        assert Path(path).exists()
    for gpu in report["gpus"]:
        if "pci" in gpu["seen_by"]:
            assert Path("/sys/bus/pci/devices", gpu["id"]).exists()


def test_libraries_are_told_as_installed_only_where_they_are():
    from importlib.util import find_spec

    for name in ("torch", "triton"):
        assert (name in here()["system"]["packages"]) == (find_spec(name) is not None)


def test_the_report_holds_no_names():
    text = json.dumps(here())
    for name in (getpass.getuser(), socket.gethostname()):
        if name not in ("root", "localhost", "") and len(name) > 3:
            assert name not in text
    if str(Path.home()) != "/":
        assert f'"{Path.home()}' not in text


def test_a_backend_that_is_not_there_is_exit_code_two():
    code, out, _ = doctor("--backend", "no-such", "--quick", "--json")
    report = json.loads(out)
    assert code == report["exit_code"] == 2
    assert [f["code"] for f in report["findings"] if f["severity"] == "error"] == ["CRT-5702"]


def test_a_report_file_holds_the_text_and_the_data(tmp_path):
    file = tmp_path / "report.txt"
    code, out, _ = doctor("--backend", "no-such", "--quick", "--report", str(file))
    text = file.read_text()
    assert text.startswith(out.rstrip("\n"))
    assert json.loads(text[text.index("\n{\n") :])["exit_code"] == code


def test_a_report_file_that_cannot_be_written_is_an_input_error(tmp_path):
    code, out, err = doctor("--backend", "no-such", "--quick", "--report", str(tmp_path))
    assert (code, out) == (2, "")
    assert "CRT-1090" in err
