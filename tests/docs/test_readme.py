"""The README's commands parse, its cheap ones run, and its file names exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from clover_rt.cli import build_parser
from clover_rt.cli.flags import check_flags

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SOURCE = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "clover_rt").rglob("*.py"))


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


@pytest.mark.parametrize(
    "argv",
    [a for a in commands(README, "clover-rt") if a[0] in ("version", "backends") or "--help" in a],
    ids=" ".join,
)
def test_a_cheap_command_runs(argv):
    code = "import sys; from clover_rt.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("block", blocks(README, "python"))
def test_the_python_example_runs(block, capsys):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_every_linked_file_exists(text):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_test_command_of_the_readme_is_what_ci_runs():
    assert ["test"] in commands(README, "make")
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()


def test_every_environment_variable_is_in_the_readme():
    variables = set(re.findall(r"\bCLOVER_RT_[A-Z_]+\b", SOURCE))
    assert variables
    assert [v for v in sorted(variables) if f"`{v}" not in README] == []
