"""What a user installs: sdist to wheel to a fresh environment, run away from the source tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "clover_rt",
    "clover_rt_cpu",
    "clover_rt_cuda",
    "clover_rt_rocm",
    "clover_rt_vulkan",
    "clover_rt_conformance",
)
# an environment variable that leads back to the source tree would hide what the wheel lacks
CLEAN = {
    k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CLOVER_RT", "VIRTUAL"))
}


def call(*command: object, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=CLEAN,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Build the sdist, and the wheel from it; return their folder."""
    out = tmp_path_factory.mktemp("dist")
    # not isolated: fetching the build backend is what `pip install .` does, and `make run`
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    """Install the wheel into a fresh environment; return its folder of programs."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home / "venv")
    python = home / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    call(*pip, "install", "--quiet", "--no-compile", wheel, cwd=home)
    return python.parent


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return tmp_path


def test_the_wheel_holds_the_packages_and_their_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"{wheel.name.split('-py3')[0]}.dist-info"}
    for name in (
        "clover_rt/py.typed",
        "clover_rt/builtin/clover_tiny/model.safetensors",
        "clover_rt/builtin/clover_tiny/tokenizer.json",
        "clover_rt_cpu/device.py",
        "clover_rt_conformance/golden/clover_tiny.npz",
        "clover_rt_conformance/golden/clover_tiny/model.safetensors",
    ):
        assert name in names
    # every module of the tree, and no test of it
    for package in (
        "clover_rt",
        "backends/cpu/clover_rt_cpu",
        "backends/cuda/clover_rt_cuda",
        "backends/rocm/clover_rt_rocm",
        "backends/vulkan/clover_rt_vulkan",
    ):
        for path in (ROOT / package).rglob("*.py"):
            assert path.relative_to((ROOT / package).parent).as_posix() in names
    # the suite and the template of a new backend ship tests for others; the rest ships none
    ours = [n for n in names if not n.startswith(("clover_rt_conformance/", "clover_rt/kit/"))]
    assert not [n for n in ours if "test_" in n or "/tests/" in n]
    assert not [n for n in names if n.endswith((".pyc", ".ipynb"))]
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_the_wheel_stays_small(wheel):
    # 5.4 MB of built-in model and 3.5 MB of golden data, which hardly compress, and code
    assert wheel.stat().st_size < 16e6


def test_the_sdist_can_be_built_and_tested_from(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile", ".ci/run", "docs/cli.md"):
        assert name in names
    assert "tests/unit/test_cli.py" in names
    assert "backends/cpu/clover_rt_cpu/device.py" in names
    assert not [n for n in names if n.startswith((".venv", "dist/", ".git/"))]


def test_the_installed_command_answers_from_an_empty_folder(installed, empty):
    done = call(installed / "clover-rt", "run", "Sort these numbers: 41, 7, 23.", cwd=empty)
    assert done.stdout == "Sorted: 7, 23, 41\n"
    assert done.stderr.splitlines()[0] == "built-in clover-tiny: a demo, not an assistant"
    assert done.stderr.splitlines()[1].startswith("diffusion · cpu · exact · ")
    assert list(empty.iterdir()) == []


def test_the_installed_command_knows_itself(installed, empty):
    told = json.loads(call(installed / "clover-rt", "version", "--json", cwd=empty).stdout)
    assert told["clover-rt"] == "0.1.0"
    backends = call(installed / "clover-rt", "backends", cwd=empty).stdout
    assert backends.split()[:3] == ["cpu", "usable", "0.1.0"]
    assert "clover_moe" in call(installed / "clover-rt", "info", cwd=empty).stdout


def test_the_installed_package_is_not_the_source_tree(installed, empty):
    code = "import clover_rt, clover_rt_cpu, clover_rt_conformance as c; print(clover_rt.__file__)"
    where = call(installed / "python", "-c", code, cwd=empty).stdout
    assert str(installed.parent) in where
    assert str(ROOT) not in where


@pytest.mark.full
def test_the_installed_package_has_types(installed, empty):
    (empty / "user.py").write_text(
        "import clover_rt\n\nwith clover_rt.load() as model:\n    reveal_type(model)\n"
    )
    python = installed / "python"
    mypy = (sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", os.devnull)
    assert '"clover_rt.api.model.Model"' in call(*mypy, "user.py", cwd=empty).stdout
