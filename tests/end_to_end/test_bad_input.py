"""Bad input: one message with code, evidence and remedy, exit code 2, and nothing else happens."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from end_to_end import bad_checkpoints as bad

import clover_rt.api.loading as loading
from clover_rt.cli import main
from tests.golden import checkpoint

TINY = str(checkpoint("clover_tiny"))
MESSAGE = re.compile(r"(CRT-\d{4}): (.+)\n  found: ((?:.|\n)+)\n  fix: (.+)\n")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """Run in an empty folder that must stay empty."""
    folder = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(folder)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def unbound(monkeypatch):
    """Fail where weights would be prepared for a device: the first large allocation."""

    def bind(*args, **options):
        raise AssertionError("the weights were bound to a device")

    monkeypatch.setattr(loading, "bind", bind)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder."""
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.is_dir() else {}


def refused(capsys, *argv: str, exit_code: int = 2) -> tuple[str, str]:
    """Run the command line; return code and evidence of its one message."""
    assert main(argv) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    found = MESSAGE.fullmatch(err)
    assert found is not None, err
    assert err.count("CRT-") == 1 + len(re.findall(r"\[CRT-", err))
    return found[1], f"{found[2]}\n{found[3]}"


@pytest.mark.parametrize("command", ["run", "info"])
@pytest.mark.parametrize("case", bad.FILES.values(), ids=bad.FILES)
def test_a_damaged_checkpoint_is_refused_before_weights_are_prepared(
    case, command, tmp_path, capsys, unbound
):
    folder = bad.copy(tmp_path)
    case.damage(folder)
    before = contents(folder)
    prompt = ["Hello"] if command == "run" else []
    code, text = refused(capsys, command, *prompt, *_model(command, folder))
    assert code == case.code
    for words in case.words:
        assert words in text
    assert contents(folder) == before


def _model(command: str, folder: Path) -> list[str]:
    return ["--model", str(folder)] if command == "run" else [str(folder)]


@pytest.mark.parametrize("source", bad.TEMPLATES.values(), ids=bad.TEMPLATES)
def test_a_hostile_template_is_refused(source, tmp_path, capsys, unbound):
    folder = bad.copy(tmp_path)
    (folder / "chat_template.jinja").write_text(source)
    code, _ = refused(capsys, "run", "Hello", "--model", str(folder))
    assert code in ("CRT-1082", "CRT-1189")


@pytest.mark.parametrize("mode", ["diffusion", "self-spec"])
def test_previews_without_their_tensors_are_refused(mode, tmp_path, capsys, unbound):
    folder = bad.copy(tmp_path)
    bad.without(*bad.PREVIEW)(folder)
    code, text = refused(capsys, "run", "Hello", "--model", str(folder), "--mode", mode)
    assert code == "CRT-1170"
    assert "conv_right_weight" in text


def test_ar_needs_no_tensors_of_previews(tmp_path):
    folder = bad.copy(tmp_path)
    bad.without(*bad.PREVIEW)(folder)
    assert main(["run", "Hello", "--model", str(folder), "--mode", "ar", "-q"]) == 0


def test_text_without_a_tokenizer_is_refused(tmp_path, capsys, unbound):
    folder = bad.copy(tmp_path)
    (folder / "tokenizer.json").unlink()
    code, text = refused(capsys, "run", "Hello", "--model", str(folder))
    assert (code, "tokenizer.json" in text) == ("CRT-1182", True)


def test_of_two_copies_of_a_tensor_the_index_decides(tmp_path, capsys):
    plain, doubled = bad.copy(tmp_path / "a"), bad.copy(tmp_path / "b")
    bad.shard(doubled, both=(bad.NORM,))
    ask = ["run", "Hello", "--max-new-tokens", "8"]
    answers = []
    for folder in (plain, doubled):
        assert main([*ask, "--model", str(folder), "-q"]) == 0
        answers.append(capsys.readouterr())
    assert answers[0].out == answers[1].out
    assert bad.NORM in answers[1].err
    assert bad.INDEX in answers[1].err


OPTIONS = {
    "an empty prompt": ("CRT-1012", ["run", ""]),
    "a prompt of no ids": (None, ["run", "--prompt-ids", ""]),
    "no new tokens": (None, ["run", "Hello", "--max-new-tokens", "0"]),
    "fewer than no new tokens": (None, ["run", "Hello", "--max-new-tokens", "-3"]),
    "half a token": (None, ["run", "Hello", "--max-new-tokens", "1.5"]),
    "a threshold above 1": (None, ["run", "Hello", "--threshold", "1.01"]),
    "a threshold below 0": (None, ["run", "Hello", "--threshold", "-0.1"]),
    "a threshold that is no number": (None, ["run", "Hello", "--threshold", "nan"]),
    "a threshold that is a word": (None, ["run", "Hello", "--threshold", "high"]),
    "an unknown mode": (None, ["run", "Hello", "--mode", "diffusive"]),
    "an unknown flag": (None, ["run", "Hello", "--tresh", "1"]),
    "a negative temperature": (None, ["run", "Hello", "--temperature", "-1"]),
    "a block size that does not divide": ("CRT-1040", ["run", "Hello", "--block-size", "12"]),
    "a block size above the trained one": ("CRT-1040", ["run", "Hello", "--block-size", "64"]),
    "block size 0": (None, ["run", "Hello", "--block-size", "0"]),
    "a draft width that does not divide": (
        "CRT-1042",
        ["run", "Hello", "--mode", "self-spec", "--draft-width", "12"],
    ),
    "a prompt longer than the context": ("CRT-1035", ["run", "Hello " * 5000]),
    "a prompt longer than a smaller context": (
        "CRT-1035",
        ["run", "Hello " * 100, "--context", "64"],
    ),
    "a context longer than the model's": ("CRT-1017", ["run", "Hello", "--context", "4097"]),
    "an id outside the vocabulary": ("CRT-1034", ["run", "--prompt-ids", "1,320"]),
    "an id of 30 digits": ("CRT-1034", ["run", "--prompt-ids", "1," + "9" * 30]),
    "a negative id": (None, ["run", "--prompt-ids=-1,2"]),
    "the mask id": ("CRT-1033", ["run", "--prompt-ids", "1,318"]),
    "ids that are words": (None, ["run", "--prompt-ids", "a,b"]),
    "a prompt that is half a character": ("CRT-1070", ["run", "a\udcffb"]),
    "an empty stop": ("CRT-1072", ["run", "Hello", "--stop", ""]),
    "a prompt file that is not there": (None, ["run", "--prompt-file", "absent"]),
}


@pytest.mark.parametrize(("code", "argv"), OPTIONS.values(), ids=OPTIONS)
def test_a_bad_option_is_refused(code, argv, capsys, unbound):
    found, text = refused(capsys, *argv, "--model", TINY)
    assert code is None or found == code
    assert text


@pytest.mark.parametrize("raw", [False, True], ids=["chat", "raw"])
def test_a_prompt_that_is_not_utf8_is_refused(raw, capsys, monkeypatch, tmp_path, unbound):
    stdin = io.TextIOWrapper(io.BytesIO(b"ab\xffc"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    code, text = refused(capsys, "run", "--model", TINY, *(["--raw"] if raw else []))
    assert code == "CRT-1013"
    (tmp_path / "prompt").write_bytes(b"ab\xffc")
    refused(capsys, "run", "--model", TINY, "--prompt-file", str(tmp_path / "prompt"))


@pytest.mark.parametrize(
    "argv", [["--backend", "cpux"], ["--backend", "cpu", "--device", "99"]], ids=["name", "device"]
)
def test_an_unknown_backend_or_device_is_exit_3(argv, capsys, unbound):
    code, text = refused(capsys, "run", "Hello", "--model", TINY, *argv, exit_code=3)
    assert code.startswith("CRT-30")
    assert "cpu" in text


def test_a_reader_that_goes_away_ends_the_run_in_silence():
    code = "import sys; from clover_rt.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "run", "Hello", "--model", TINY, "--mode", "ar", "-q"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        err = child.stderr.read()
        assert child.wait(timeout=60) == 141
    assert err == b""


NAN = {
    "F32": np.array([np.nan], "<f4").tobytes(),
    "BF16": b"\xc0\x7f",
}


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ("model.layers.1.linear_attn.out_proj.weight", ("layers.1",)),
        ("model.layers.3.self_attn.o_proj.weight", ("layers.3",)),
        ("model.layers.2.mlp.shared_expert.down_proj.weight", ("layers.2",)),
        ("lm_head.weight", ("pick",)),
    ],
)
@pytest.mark.parametrize("mode", ["ar", "diffusion"])
def test_nan_in_the_weights_is_found_with_layer_op_and_pass(mode, tensor, words, tmp_path, capsys):
    folder = bad.copy(tmp_path)
    entries, data = bad.parts(folder / bad.WEIGHTS)
    first, last = entries[tensor]["data_offsets"]
    number = NAN[entries[tensor]["dtype"]]
    spoiled = data[:first] + number * ((last - first) // len(number)) + data[last:]
    bad.join(folder / bad.WEIGHTS, entries, spoiled)
    argv = ["run", "Hello", "--model", str(folder), "--mode", mode]
    code, text = refused(capsys, *argv, exit_code=3)
    assert code == "CRT-4001"
    for part in (*words, "pass"):
        assert part in text
