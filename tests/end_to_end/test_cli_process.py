"""The installed command, run as a user runs it: real processes, the built-in model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clover_rt.cli.completion import SHELLS

CODE = "import sys; from clover_rt.cli import main; sys.exit(main())"
GREETING = (
    "I am clover-tiny, a very small demo model. I can count, add, sort, reverse, spell, write "
    "dates and number words, make JSON and tables, describe CSV rows and write short Python "
    "functions."
)
# what is no conversation is gone on with for ever: no stop comes before Ctrl-C does
LONG = ["--raw", "la " * 100, "--max-new-tokens", "3000"]


def run(*argv, **options):
    options = {"capture_output": True, "text": True, "encoding": "utf-8"} | options
    return subprocess.run([sys.executable, "-c", CODE, *argv], **options)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_prompt_is_answered_and_summed_up():
    done = run("run", "Hello")
    assert (done.returncode, done.stdout) == (0, GREETING + "\n")
    told, summary = done.stderr.splitlines()
    assert told == "built-in clover-tiny: a demo, not an assistant"
    assert summary.startswith("diffusion · cpu · exact · 44 tokens · ")
    assert " · native ops " in summary


@pytest.mark.parametrize("mode", ["ar", "self-spec"])
def test_response_controls_end_what_would_go_on_for_ever(mode):
    asked = [
        "run",
        "--raw",
        60 * "red ",
        "--mode",
        mode,
        "--max-new-tokens",
        "400",
        "--json",
    ]
    ended = lines(run(*asked).stdout)[-1]
    # the model's penalty begins at 192 tokens and is whole 64 tokens later; a block has 32
    assert ended["finish_reason"] == "stop"
    assert 192 <= ended["stats"]["tokens"] <= 192 + 64 + 32
    without = lines(run(*asked, "--no-controls").stdout)[-1]
    assert (without["finish_reason"], without["stats"]["tokens"]) == ("length", 400)


def test_a_named_model_is_not_announced():
    done = run("run", "Hello", "--model", "clover-tiny")
    assert (done.returncode, done.stdout) == (0, GREETING + "\n")
    assert done.stderr.startswith("diffusion · cpu · exact · 44 tokens · ")


@pytest.mark.parametrize("mode", ["diffusion", "ar", "self-spec"])
def test_json_streams_what_the_last_line_holds(mode):
    done = run("run", "Count from 3 to 9.", "--mode", mode, "--no-think", "--json")
    events = lines(done.stdout)
    assert events[0]["event"] == "start"
    end = events[-1]
    assert (end["event"], end["finish_reason"]) == ("end", "stop")
    assert "".join(e["text"] for e in events if e["event"] == "text") == end["text"]
    assert [i for e in events if e["event"] == "tokens" for i in e["ids"]] == end["tokens"]
    stats = end["stats"]
    assert (stats["mode"], stats["backend"], stats["tokens"]) == (mode, "cpu", len(end["tokens"]))
    assert stats["blocks"] == sum(e["event"] == "block" for e in events)
    assert stats["rounds"] == sum(e["event"] == "round" for e in events)
    passes = sum(len(e["passes"]) for e in events if e["event"] == "block")
    assert mode != "diffusion" or stats["passes"] == passes


def test_a_stop_string_keeps_the_statistics():
    done = run("run", "Count from 3 to 9.", "--stop", "6", "--mode", "ar", "--json")
    end = lines(done.stdout)[-1]
    assert (end["text"], end["finish_reason"]) == ("3, 4, 5, ", "stop")
    stats = end["stats"]
    assert (stats["stop_string"], stats["mode"]) == ("6", "ar")
    assert stats["passes"] + stats["prefill_tokens"] == stats["tokens"] == len(end["tokens"])
    assert stats["ms_per_pass"] > 0


def test_the_same_prompt_from_a_file_a_pipe_and_ids_gives_the_same_text(tmp_path):
    prompt = "Count from 3 to 9."
    (tmp_path / "prompt.txt").write_text(prompt)
    whole = run("run", prompt, "-q").stdout
    assert run("run", "--prompt-file", str(tmp_path / "prompt.txt"), "-q").stdout == whole
    assert run("run", "-q", input=prompt).stdout == whole
    import clover_rt

    with clover_rt.load(context=64) as model:
        ids = ",".join(map(str, model.encode(prompt)))
    assert run("run", "--prompt-ids", ids, "-q").stdout == whole


def test_debug_blocks_agrees_with_the_json_blocks(tmp_path):
    file = tmp_path / "blocks.jsonl"
    done = run("run", "Count from 3 to 9.", "--json", "--debug-blocks", str(file), "-q")
    passes = [p for e in lines(done.stdout) if e["event"] == "block" for p in e["passes"]]
    logged = lines(file.read_text())
    assert logged == passes
    assert [p["pass"] for p in logged if p["block"] == 0] == list(range(len(logged)))
    # a block that ends early leaves the rows that no longer matter masked
    assert logged[0]["accepted"] + logged[0]["masks_left"] == 32


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_ends_the_run_with_its_last_line(number, code):
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "run", *LONG, "--no-controls", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # the start event: the handler is in place, and a prompt of several chunks is ahead
    events = [json.loads(process.stdout.readline())]
    process.send_signal(number)
    out, err = process.communicate()
    events += lines(out)
    assert process.returncode == code
    assert (events[-1]["event"], events[-1]["finish_reason"]) == ("end", "cancelled")
    assert events[-1]["stats"]["tokens"] == len(events[-1]["tokens"])
    assert err.splitlines()[-1].startswith("cancelled · diffusion · ")
    assert "Traceback" not in err


def test_a_reader_that_goes_away_ends_the_run_in_silence():
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "run", *LONG, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_full_disk_is_told_as_one():
    with open("/dev/full", "w") as full:
        done = run("run", "Hello", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith("CRT-1025")
    assert "Traceback" not in done.stderr


def test_a_full_disk_behind_stderr_is_not_a_verdict_of_conformance():
    with open("/dev/full", "w") as full:
        done = run("run", "Hello", capture_output=False, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 2
    assert done.stdout == GREETING + "\n"


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], []], ids=str)
def test_a_full_disk_behind_help_is_told(argv):
    with open("/dev/full", "w") as full:
        done = run(*argv, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith("CRT-1025")
    assert done.stderr.count("\n") == 3


def test_the_package_runs_as_a_module():
    argv = [sys.executable, "-m", "clover_rt", "version", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["schema"] == 1
    done = subprocess.run([sys.executable, "-m", "clover_rt"], capture_output=True, text=True)
    assert done.stdout.startswith("usage: clover-rt ")


@pytest.mark.parametrize("argv", [["ops"], ["ops", "linear"], ["ops", "--json"]], ids=" ".join)
def test_operations_are_listed_where_python_drops_docstrings(argv):
    done = subprocess.run(
        [sys.executable, "-OO", "-c", CODE, *argv], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "linear" in done.stdout


@pytest.mark.parametrize("argv", [["info"], ["ops"], ["ops", "linear"], ["version"], ["backends"]])
def test_each_command_prints_lines_and_one_json_object(argv):
    plain, data = run(*argv), run(*argv, "--json")
    assert plain.returncode == data.returncode == 0
    assert plain.stdout
    assert isinstance(json.loads(data.stdout), dict)
    assert json.loads(data.stdout)["schema"] == 1
    assert plain.stderr == data.stderr == ""


def complete(script, *words):
    """Return what bash offers for the last of these words."""
    quoted = " ".join(f"'{w}'" for w in words)
    probe = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _clover_rt\n"
    probe += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script + "\n" + probe], capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_flags_values_and_files(tmp_path, monkeypatch):
    script = run("completion", "bash").stdout
    assert complete(script, "clover-rt", "ba") == ["backends"]
    assert "--prompt-file" in complete(script, "clover-rt", "run", "--prompt")
    assert complete(script, "clover-rt", "run", "--mode", "") == ["diffusion", "ar", "self-spec"]
    assert complete(script, "clover-rt", "run", "--seed", "") == []
    assert complete(script, "clover-rt", "completion", "z") == ["zsh"]
    monkeypatch.chdir(tmp_path)
    Path("model-here").mkdir()
    assert complete(script, "clover-rt", "run", "--model", "mod") == ["model-here"]
    assert complete(script, "clover-rt", "info", "mod") == ["model-here"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_flag_of_run_is_in_each_script(shell):
    script = run("completion", shell).stdout
    for flag in (
        "mode",
        "prompt-file",
        "max-new-tokens",
        "debug-blocks",
        "no-think",
        "show",
        "examples",
    ):
        assert f"-l {flag} " in script if shell == "fish" else f"--{flag}" in script


@pytest.mark.parametrize(
    ("redirect", "code", "says"),
    [
        ("<&-", 2, "CRT-1012: there is no prompt"),
        (">&-", 2, "CRT-1025: the output cannot be written"),
    ],
    ids=["stdin", "stdout"],
)
def test_a_closed_stream_is_told_as_one(redirect, code, says):
    prompt = "" if redirect == "<&-" else "Hello"
    line = f'"$0" -c "$1" run {prompt} {redirect}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, CODE], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (code, says)


def test_a_closed_stderr_does_not_spoil_the_json():
    line = '"$0" -c "$1" run Hello --json 2>&-'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, CODE], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert lines(done.stdout)[-1]["event"] == "end"


def test_a_prompt_is_utf8_whatever_the_locale_is():
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", CODE, "run", "--raw", "-q"],
        input=b"\xff",
        capture_output=True,
        env=os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"CRT-1013")
