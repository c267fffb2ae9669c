"""`run --examples`: commands that run as they stand, and what they go together with."""

from __future__ import annotations

import json
import shlex

import pytest

from clover_rt import builtin
from clover_rt.cli import build_parser, main


@pytest.mark.parametrize("name", builtin.NAMES)
def test_each_example_is_a_command_that_asks_for_its_prompt(capsys, name):
    assert main(["run", "--examples", "--model", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    examples = builtin.examples(name)
    assert lines[::2] == [example["kind"] for example in examples]
    for line, example in zip(lines[1::2], examples, strict=True):
        program, *argv = shlex.split(line)
        args = build_parser().parse_args(argv)
        assert program == "clover-rt"
        assert (args.prompt, args.model) == (example["prompt"], name)


def test_without_a_model_the_commands_name_none(capsys):
    assert main(["run", "--examples"]) == 0
    out = capsys.readouterr().out
    assert out.count("  clover-rt run ") == len(builtin.examples())
    assert "--model" not in out


def test_json_is_one_object_with_the_files_examples(capsys):
    assert main(["run", "--examples", "--json"]) == 0
    file = json.loads((builtin.path() / "examples.json").read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "examples": file["examples"]}


@pytest.mark.parametrize("name", builtin.NAMES)
def test_each_kind_is_there_once(name):
    kinds = [example["kind"] for example in builtin.examples(name)]
    assert kinds and len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("model", ["path/to/folder", "clover-tin"])
def test_what_is_no_built_in_model_has_no_examples(capsys, model):
    assert main(["run", "--examples", "--model", model]) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1068")
    assert "clover-tiny" in err


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["Hello"], "PROMPT"),
        (["--mode", "ar"], "--mode"),
        (["--show"], "--show"),
        (["--backend", "cuda"], "--backend"),
        (["--no-controls"], "--no-controls"),
        (["--no-think"], "--think or --no-think"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_has_no_effect_beside_examples_is_an_error(capsys, argv, named):
    assert main(["run", "--examples", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"CRT-1011: {named} was given")
