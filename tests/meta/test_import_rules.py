"""Every import contract holds, and is seen to fail on one planted violation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "clover_rt",
    "backends/cpu/clover_rt_cpu",
    "backends/cuda/clover_rt_cuda",
    "backends/rocm/clover_rt_rocm",
    "backends/vulkan/clover_rt_vulkan",
    "conformance/clover_rt_conformance",
)
CONTRACTS = {
    c["id"]: c["name"]
    for c in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}

# contract: (file, the import that breaks it)
PLANTED = {
    "layers": ("clover_rt/spec/planted.py", "import clover_rt.ops"),
    "cli": ("clover_rt/cli/planted.py", "import clover_rt.plan"),
    "engine": ("clover_rt/engine/planted.py", "import clover_rt.weights"),
    "device-free": ("clover_rt/model/planted.py", "import clover_rt.backend"),
    "weights": ("clover_rt/weights/planted.py", "import clover_rt.graph"),
    "text": ("clover_rt/text/planted.py", "import clover_rt.spec"),
    "plugins": ("clover_rt/plugins.py", "import clover_rt.ops"),
    "core": ("clover_rt/model/planted.py", "import torch"),
    "backends": ("backends/cpu/clover_rt_cpu/planted.py", "import clover_rt.engine"),
    "apart": ("backends/rocm/clover_rt_rocm/planted.py", "import clover_rt_cuda"),
    "conformance": ("conformance/clover_rt_conformance/planted.py", "import clover_rt_cpu"),
}


@pytest.fixture
def tree(tmp_path):
    """Return a copy of the sources, without data."""
    for source in SOURCES:
        data = shutil.ignore_patterns("golden", "clover_tiny", "__pycache__")
        shutil.copytree(ROOT / source, tmp_path / source, ignore=data)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree, *contracts):
    """Return (exit code, output) of lint-imports over a tree."""
    paths = [str((tree / source).parent) for source in SOURCES]
    chosen = [f"--contract={c}" for c in contracts]
    code = "from importlinter.cli import lint_imports_command as main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache", *chosen],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_tree_keeps_every_contract(tree):
    code, output = lint(tree)
    assert code == 0, output
    assert f"{len(CONTRACTS)} kept, 0 broken" in output


def test_every_contract_has_a_planted_violation():
    assert sorted(PLANTED) == sorted(CONTRACTS)


@pytest.mark.parametrize("contract", sorted(PLANTED))
def test_a_planted_violation_breaks_its_contract(tree, contract):
    file, statement = PLANTED[contract]
    with open(tree / file, "a") as source:
        source.write(f"\n{statement}\n")
    code, output = lint(tree, contract)
    assert code == 1, output
    assert f"{CONTRACTS[contract]} BROKEN" in output


def test_a_new_module_must_be_placed_in_a_layer(tree):
    (tree / "clover_rt" / "unplaced.py").write_text("")
    code, output = lint(tree, "layers")
    assert code == 1
    assert "unplaced" in output
