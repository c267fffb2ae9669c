"""Thousands of spoiled files: each is refused by one error or read rightly, soon and in 200 MB."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.golden import ROOT

USUAL = {
    "headers": 400,
    "configs": 400,
    "generation-configs": 200,
    "indexes": 200,
    "tokenizer-configs": 200,
    "tokenizers": 100,
}
FULL = {
    "headers": 3500,
    "configs": 3000,
    "generation-configs": 1200,
    "indexes": 1300,
    "tokenizer-configs": 700,
    "tokenizers": 300,
}
"""Mutants of each kind; their seeds are 0, 1, 2, ..."""
MOST_BYTES = 200e6


def judge(kind: str, count: int) -> None:
    argv = [sys.executable, "-m", "tests.fuzz.runner", kind, "0", str(count)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["mutants"], report["failures"]) == (count, 0)
    # a lane in which nothing opens, or everything, judges nothing
    assert 0 < report["opened"] < count
    assert report["peak_bytes"] < MOST_BYTES


@pytest.mark.parametrize("kind", USUAL)
def test_mutants_are_refused_or_read_rightly(kind):
    judge(kind, USUAL[kind])


@pytest.mark.full
@pytest.mark.parametrize("kind", FULL)
def test_ten_thousand_mutants_are_refused_or_read_rightly(kind):
    assert sum(FULL.values()) == 10_000
    judge(kind, FULL[kind])
