"""Commands and examples of the pages run as they stand, and the files that they name exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from clover_rt.cli import COMMANDS, build_parser
from clover_rt.cli.flags import check_flags

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
}
PLACEHOLDER = "path/to"
# its commands build on each other: they have a test of their own
TUTORIAL = "docs/plugins.md"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PACKAGES = ("clover_rt", "backends", "conformance")
SOURCE = "\n".join(
    p.read_text(encoding="utf-8") for name in PACKAGES for p in (ROOT / name).rglob("*.py")
)


def blocks(text, language):
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text, program):
    """Return the argument lists of a program in the shell blocks, in pipes too."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    parts = [shlex.split(part, comments=True) for line in lines for part in line.split(" | ")]
    return [part[1:] for part in parts if part and part[0] == program]


@pytest.mark.parametrize("argv", commands(README, "clover-rt"), ids=" ".join)
def test_a_clover_rt_command_parses_and_its_flags_go_together(argv):
    if "--help" in argv:
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args(argv)
        assert ended.value.code == 0
        return
    args = build_parser().parse_args(argv)
    if args.command == "run":
        check_flags(args)


@pytest.mark.parametrize("argv", commands(README, "make") + commands(CONTRIBUTING, "make"))
def test_a_make_target_exists(argv):
    assert re.search(rf"^{argv[0]}:", MAKEFILE, re.MULTILINE)


def shell_lines():
    """Return every clover-rt line of the pages and of --help, each once."""
    examples = "\n".join(getattr(m, "EXAMPLES", "") for m in COMMANDS.values())
    pages = [text for name, text in PAGES.items() if name != TUTORIAL]
    shell = [line for text in pages for b in blocks(text, "sh") for line in b.splitlines()]
    lines = [line.strip() for line in [*shell, *examples.splitlines()]]
    return [line for line in dict.fromkeys(lines) if "clover-rt" in line]


def runnable():
    """Yield the lines that name no placeholder; a whole doctor takes long."""
    for line in shell_lines():
        slow = line.startswith("clover-rt doctor") and "--quick" not in line
        if PLACEHOLDER not in line:
            yield pytest.param(line, marks=pytest.mark.full) if slow else line


@pytest.mark.parametrize("line", list(runnable()))
def test_a_command_runs_as_it_stands(line, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if line.startswith("pip "):
        # installing is the packaging test's
        line = line.replace("install", "--version #")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    # doctor: 1 tells of warnings about the machine that the tests run on
    good = (0, 1) if line.startswith("clover-rt doctor") else (0,)
    assert done.returncode in good, done.stderr
    assert done.stdout or done.stderr or line.startswith("eval ")


@pytest.mark.parametrize("block", blocks(README, "python"))
def test_the_python_example_runs(block, capsys):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", PAGES)
def test_every_linked_file_exists(name):
    folder = (ROOT / name).parent
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGES[name])
    assert [link for link in links if not (folder / link).exists()] == []


def test_every_page_of_the_docs_is_in_their_list():
    listed = re.findall(r"\]\(([^)]+)\)", PAGES["docs/README.md"])
    pages = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")}
    assert pages - {"README.md"} <= set(listed)


def test_the_test_command_of_the_readme_is_what_ci_runs():
    assert ["test"] in commands(README, "make")
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()


def test_every_environment_variable_is_in_the_readme():
    variables = set(re.findall(r"\bCLOVER_RT_[A-Z_]+\b", SOURCE))
    assert {"CLOVER_RT_DEBUG", "CLOVER_RT_CPU_ISA"} <= variables
    assert [v for v in sorted(variables) if f"`{v}" not in README] == []


@pytest.mark.parametrize("name", [n for n in PAGES if n.startswith(("README", "docs/install-"))])
def test_a_page_installs_from_the_checkout_with_extras_that_there_are(name):
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installs = re.findall(r"pip install [^\n`]+", PAGES[name])
    # nothing is published: an index has no package of this name, or somebody else's
    assert not [line for line in installs if "clover-rt" in line]
    extras = re.findall(r"\.\[(\w+)\]", PAGES[name])
    assert set(extras) <= set(project["optional-dependencies"])
    assert extras or name == "docs/install-windows.md"


def test_the_extra_for_a_radeon_brings_what_its_page_says():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert [need.split(">")[0] for need in extras["rocm"]] == ["pyopencl"]
    assert extras["opencl"] == extras["rocm"]
    assert "brings `pyopencl`, and no more" in PAGES["docs/install-radeon.md"]


def test_what_builds_without_isolation_is_in_the_test_extra():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["test"]
    names = [re.split(r"[<>=~ ]", need)[0] for need in extra]
    # an editable build by hatchling asks for editables; the walk builds without isolation
    assert {"hatchling", "editables"} <= set(names)
    # another minor version may format otherwise
    (ruff,) = [need for need in extra if need.startswith("ruff")]
    assert ruff.startswith("ruff~=") and ruff.count(".") == 2
