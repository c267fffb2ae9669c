"""Parsing: a mistake is one error that names the nearest right spelling."""

from __future__ import annotations

import pytest

from clover_rt.cli import COMMANDS, build_parser, main


@pytest.mark.parametrize(
    ("argv", "found", "fix"),
    [
        (["rnu"], "rnu", "did you mean 'run'?"),
        (["run", "x", "--treshold", "1"], "--treshold", "did you mean '--threshold'?"),
        (["run", "x", "--mode", "difusion"], "difusion", "did you mean 'diffusion'?"),
        (["run", "x", "--thresh", "0.5"], "--thresh", "did you mean '--threshold'?"),
        (["run", "x", "--precision", "zzz"], "exact", "clover-rt run --help"),
        (
            ["run", "x", "--modle", "y"],
            "--modle",
            "did you mean '--mode' or '--model'? see `clover-rt run --help`",
        ),
        (["run", "-x"], "-x", "clover-rt run -- -x"),
        (["run", "-q is a flag"], "-q", "clover-rt run -- "),
        (["info", "--modle", "y"], "--modle", "see `clover-rt info --help`"),
        (["--modle", "run"], "--modle", "see `clover-rt --help`"),
        (["run", "x", "--model"], "--model", "clover-rt run --help"),
        (["run", "x", "--think", "--no-think"], "not allowed with", "clover-rt run --help"),
        (["completion", "csh"], "zsh", "clover-rt completion --help"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_error_with_the_nearest_name(capsys, argv, found, fix):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("CRT-1001: ")
    assert found in err
    assert fix in err.splitlines()[-1]
    assert len(err.splitlines()) == 3


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--max-new-tokens", "0", "0 is less than 1"),
        ("--max-new-tokens", "-5", "-5 is less than 1"),
        ("--max-new-tokens", "1.5", "'1.5' is not a whole number"),
        ("--context", "many", "'many' is not a whole number"),
        ("--block-size", "0", "0 is less than 1"),
        ("--draft-width", "-1", "-1 is less than 1"),
        ("--threshold", "1.01", "1.01 is not in 0 to 1"),
        ("--threshold", "-0.1", "-0.1 is not in 0 to 1"),
        ("--threshold", "nan", "nan is not a finite number"),
        ("--threshold", "high", "'high' is not a number"),
        ("--top-p", "2", "2 is not in 0 to 1"),
        ("--temperature", "inf", "inf is not a finite number"),
        ("--temperature", "-1", "-1 is less than 0"),
        ("--model", "", "it is empty"),
        ("--seed", "x", "invalid int value: 'x'"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_value(capsys, flag, value, says):
    assert main(["run", "Hi", flag, value]) == 2
    err = capsys.readouterr().err
    assert f"argument {flag}: {says}" in err


@pytest.mark.parametrize("command", ["info", "fit"])
def test_an_empty_name_of_a_model_is_refused(capsys, command):
    assert main([command, ""]) == 2
    assert "it is empty" in capsys.readouterr().err


def test_help_has_exit_codes_and_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for code in ("0    done", "2    the input", "3    a backend", "4    a bug", "130  interrupted"):
        assert code in out
    with pytest.raises(SystemExit):
        build_parser().parse_args(["run", "--help"])
    assert 'clover-rt run "Hello"' in capsys.readouterr().out


def test_the_bare_command_prints_its_help(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: clover-rt")
    assert err == ""


def test_help_is_wrapped_to_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            build_parser().parse_args([name, "--help"])
        out = capsys.readouterr().out
        text = out.split("\n\n")[1]
        assert max(map(len, text.splitlines())) <= 60, name
        assert " ".join(text.split()) == " ".join(COMMANDS[name].DESCRIPTION.split())


def test_the_default_length_and_its_limit_are_told(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["run", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "at most N (default: 256, or what the context leaves)" in out
