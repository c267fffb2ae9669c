"""Whole golden runs on Triton's interpreter; each is made once for a state of the kernels."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clover_rt_cuda
from clover_rt_conformance.models.golden import runs

SCRIPT = Path(clover_rt_cuda.__file__).parents[1] / "interpreted_runs.py"
LANE = runpy.run_path(str(SCRIPT))
CASES = [
    pytest.param(b, c, id=LANE["key_of"](b, c)) for b, c in LANE["chosen"](("cuda", "rocm"), "")
]


def test_the_lane_has_every_golden_run_once_and_the_built_in_model() -> None:
    cases = LANE["cases"]()
    assert sorted(c.run for c in cases) == sorted([*runs("clover_tiny")["decode"], ""])
    whole = [c.run for c in cases if c.tokens is None]
    assert sum(run.endswith("_t03") for run in whole) == 6
    assert sum(run.endswith("/ar") for run in whole) == 6
    assert sum(run.startswith("one/") and "self_spec" in run for run in whole) == 4


def test_the_table_has_every_run_and_none_is_wrong() -> None:
    """Those of older kernels count too: a run that differed then must not be forgotten."""
    table = json.loads(LANE["TABLE"].read_text())
    names = {LANE["key_of"](b, c) for b, c in LANE["chosen"](("cuda", "rocm"), "")}
    assert table["runs"].keys() == names
    assert {name: entry["wrong"] for name, entry in table["runs"].items() if entry["wrong"]} == {}


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the lane over a table that is not there yet."""
    made = runpy.run_path(str(SCRIPT))
    made["read"].__globals__["TABLE"] = tmp_path / "table.json"
    return made


def test_a_result_is_kept_until_kernels_or_checkpoint_are_others(
    lane: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = lane["cases"]()[0]
    table = lane["read"]()
    assert lane["result"](table, "cuda", case) is None
    table["runs"][lane["key_of"]("cuda", case)] = entry = {"data": case.data, "wrong": ""}
    lane["write"](table)
    assert lane["result"](lane["read"](), "cuda", case) == entry
    assert lane["result"](lane["read"](), "rocm", case) is None
    table["runs"][lane["key_of"]("cuda", case)] = {"data": "another checkpoint", "wrong": ""}
    lane["write"](table)
    assert lane["result"](lane["read"](), "cuda", case) is None
    lane["write"](table | {"kernels": "others"})
    assert lane["read"]()["runs"] == {}


@pytest.mark.parametrize("backend", LANE["BACKENDS"])
def test_a_diffusion_run_and_four_tokens_are_the_golden_ones(backend: str) -> None:
    told = script("--backend", backend, "--usual")
    assert told.returncode == 0, told.stdout + told.stderr
    lines = [line for line in told.stdout.splitlines() if line.startswith(f"{backend}: ")]
    assert [line.count("'wrong': ''") for line in lines] == [1] * len(LANE["usual_cases"]())


@pytest.mark.full
@pytest.mark.parametrize(("backend", "case"), CASES)
def test_a_run_on_the_interpreter_is_the_golden_one(backend: str, case: Any) -> None:
    """Minutes each; a result in the table is not made again, and a new one is kept there."""
    told = script("--backend", backend, "--only", case.name)
    assert told.returncode == 0, told.stdout + told.stderr


CALLS = """
import torch
from clover_rt_cuda.backend import interpret

interpret()
import triton
import triton.language as tl
from triton.runtime import interpreter

prepare, prepared = interpreter._patch_lang, []
interpreter._patch_lang = lambda fn: (prepared.append(fn.__name__), prepare(fn))[1]

@triton.jit
def doubled(x):
    return x + x + tl.zeros((4,), tl.float32)

@triton.jit
def kernel(x):
    i = tl.arange(0, 4)
    for _ in range(3):
        tl.store(x + i, doubled(tl.load(x + i)))

x = torch.arange(4, dtype=torch.float32)
kernel[(2,)](x)
kernel[(1,)](x)
print(x.tolist(), prepared.count("kernel"), prepared.count("doubled"))
"""


def test_a_function_is_prepared_for_the_interpreter_once(tmp_path: Path) -> None:
    """The numbers are doubled three times by each of three programs, in two launches."""
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    told = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert told.stdout.split() == f"{[i * 2.0**9 for i in range(4)]} 2 1".split(), told.stderr


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the lane's script; a process of its own is told in time that kernels are interpreted."""
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
