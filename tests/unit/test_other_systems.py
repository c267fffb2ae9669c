"""What Windows and macOS do not have is not needed: modules and functions taken away, one by one.

No such system runs these tests; they show only that nothing here asks for what is not there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROMPT = "Sort these numbers: 41, 7, 23."
POSIX_ONLY = """
import os, platform, runpy, signal, subprocess, sys, tempfile

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {"pwd", "grp", "fcntl", "resource", "termios"}:
            raise ImportError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
for name in ("pwd", "grp", "fcntl", "resource", "termios"):
    sys.modules.pop(name, None)
for name in ("geteuid", "getuid", "getegid", "getgid", "getgroups", "killpg", "sched_getaffinity",
             "sched_yield", "setsid", "getloadavg"):
    delattr(os, name)
for name in ("alarm", "setitimer", "SIGKILL", "SIGALRM", "SIGHUP"):
    delattr(signal, name)
platform.system = lambda: "Windows"
from clover_rt.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", POSIX_ONLY, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_model_answers_without_what_only_posix_has() -> None:
    found = run("run", "--quiet", PROMPT)
    assert found.returncode == 0, found.stderr
    assert "7, 23, 41" in found.stdout


def test_a_model_is_quantised_without_what_only_posix_has(tmp_path: Path) -> None:
    from clover_rt import builtin

    found = run("quantize", str(builtin.path()), str(tmp_path / "q4"), "--format", "q4")
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "q4" / "model.safetensors").exists()


@pytest.mark.parametrize("args", [("--help",), ("version", "--json"), ("backends", "--json")])
def test_commands_work_without_what_only_posix_has(args: tuple[str, ...]) -> None:
    found = run(*args)
    assert found.returncode == 0, found.stderr


def test_doctor_works_without_what_only_posix_has() -> None:
    found = run("doctor", "--backend", "cpu", "--json")
    assert "Traceback" not in found.stderr, found.stderr
    report = json.loads(found.stdout)
    assert report["exit_code"] in (0, 1)
    assert "CRT-5001" not in [f["code"] for f in report["findings"]], "a probe failed"
    (row,) = report["tests"]
    assert row["passed"] and row["kernels"]["ops"] and row["model"]["tokens"]
