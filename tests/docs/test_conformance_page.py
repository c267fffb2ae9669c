"""docs/conformance.md: its table is the suite's own, and its command and class run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from clover_rt.cli import main
from clover_rt_conformance.classes import table
from clover_rt_conformance.trial import Outcome

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "conformance.md").read_text()


def block(start: str) -> str:
    """Return the code block of the page that starts with these words."""
    found = [b for b in re.findall(r"```\w*\n(.*?)```", PAGE, re.S) if b.startswith(start)]
    assert len(found) == 1, f"{len(found)} blocks start with {start!r}"
    return found[0]


def test_the_table_of_classes_is_the_suites_own():
    assert f"-->\n{table()}\n<!--" in PAGE, (
        "put the output of clover_rt_conformance.classes.table() into docs/conformance.md"
    )


def test_every_outcome_is_explained():
    told = re.findall(r"^\| ([a-z ]+) \|", PAGE, re.M)
    assert told[1:7] == [o.value.replace("_", " ") for o in Outcome]


def test_the_command_of_the_page_passes(capsys):
    words = block("clover-rt conformance").split()
    assert main(words[1:]) == 0
    assert "passed: " in capsys.readouterr().out


def run_pytest(words, folder):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


def test_the_pytest_line_of_the_page_passes(tmp_path):
    done = run_pytest(block("pytest -p").split()[1:], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_class_of_the_page_passes(tmp_path):
    (tmp_path / "test_mine.py").write_text(block("import clover_rt_conformance"))
    done = run_pytest(["test_mine.py"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
