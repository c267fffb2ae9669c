"""The two pytest doors: the plugin with --pyargs, and a class that inherits the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.conformance_plugin import install

PLUGIN = ("-p", "clover_rt_conformance.plugin", "--pyargs", "clover_rt_conformance")
CASE = "rope/H=4,K=32,r=4/commit7"
INHERITED = """
import clover_rt_conformance
from clover_rt_conformance.reference_device import ReferenceDevice


class TestMine(clover_rt_conformance.Suite):
    backend = "mine"
    cases = ("rope/H=4,K=32,r=4/commit*",)


class TestHere(clover_rt_conformance.Suite):
    ops = ("begin",)

    @classmethod
    def open_device(cls):
        return ReferenceDevice("here")
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"))


@pytest.fixture
def run(plugins: Path, tmp_path: Path):
    """Return run(*words) -> (exit code, output) of pytest in an empty folder."""

    def go(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *words],
            env=os.environ | {"PYTHONPATH": str(plugins)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    return go


def test_the_plugin_runs_the_suite_on_the_backend_that_is_named(run):
    code, out = run(*PLUGIN, "--backend", "mine", "--op", "rope", "--class", "K-04")
    assert code == 0, out
    assert " passed" in out and "skipped" not in out


def test_the_plugin_shows_the_failure_and_the_line_that_reruns_it(run):
    code, out = run(*PLUGIN, "--backend", "mine", "--device", "wrong", "--case", CASE)
    assert code == 1
    assert "K-04 tail tiles in rows" in out
    assert f"rerun: clover-rt conformance --backend mine --device wrong --case {CASE}" in out


def test_the_plugin_skips_what_is_declined_with_its_reason_unless_it_is_required(run):
    words = (*PLUGIN, "--backend", "mine", "--device", "declines", "--case", CASE)
    code, out = run(*words)
    assert code == 0 and "declined: K=64 exceeds 32" in out
    code, out = run(*words, "--require", "rope")
    assert code == 1 and "declined: rope/" in out


def test_the_plugin_without_a_backend_says_what_to_write(run):
    code, out = run(*PLUGIN)
    assert code != 0
    assert "--backend NAME" in out


def test_the_plugin_that_chooses_no_case_fails(run):
    code, out = run(*PLUGIN, "--backend", "mine", "--op", "rope", "--class", "K-12")
    assert code != 0
    assert "zero cases are a failure" in out


def test_a_class_that_inherits_the_suite_is_the_suite(run, tmp_path):
    (tmp_path / "test_mine.py").write_text(INHERITED)
    code, out = run("-v", "test_mine.py")
    assert code == 0, out
    assert f"TestMine::test_conforms[{CASE} exact] PASSED" in out
    assert "TestHere::test_conforms[begin/pages fast] PASSED" in out
