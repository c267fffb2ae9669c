"""`clover-rt quantize` as a user runs it: the result runs, is described, and took little memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from clover_rt.cli import main
from tests.unit import checkpoints, quantised

VOCAB = 1_200_000
EMBED = "model.embed_tokens.weight"
MB = 1 << 20

MEASURED = """
import sys
from clover_rt.cli import main
def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))
main(["quantize", *sys.argv[3:]])
before = status("VmRSS:")
assert main(["quantize", *sys.argv[1:3], *sys.argv[5:]]) == 0
print("grown", status("VmHWM:") - before)
"""

INTERRUPTED = """
import os, signal, sys
from clover_rt.cli import main, progress
def stored(self, done, total, what):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGINT)
progress.Progress.stored = stored
# a shell that starts the tests in the background has children ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(["quantize", *sys.argv[1:]]))
"""


def child(code, *arguments):
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return form -> folder with the built-in model in that form."""
    root = tmp_path_factory.mktemp("quantised")
    out = {form: root / form for form in ("q4", "q8")}
    for form, folder in out.items():
        assert main(["quantize", "clover-tiny", str(folder), "--format", form]) == 0
    return out


@pytest.mark.parametrize("form", ["q4", "q8"])
@pytest.mark.parametrize("mode", ["diffusion", "ar"])
def test_the_built_in_model_still_computes(made, capsys, form, mode):
    flags = ["--model", str(made[form]), "--mode", mode, "-q"]
    assert main(["run", "Compute 33 - 12.", *flags]) == 0
    assert capsys.readouterr().out == "33 - 12 = 21. That is twenty-one.\n"


def test_info_counts_the_parameters_of_the_source(made, capsys):
    assert main(["info", str(made["q4"]), "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["weights"]
    assert weights["parameters"] == 2_697_000
    assert weights["bytes"] == sum(v.nbytes for v in quantised.read(made["q4"]).values())
    assert set(weights["types"]) == {"Q4", "Q8", "BF16"}


def test_fit_counts_the_result_as_the_dry_run_does(made, capsys, tmp_path):
    assert main(["fit", str(made["q4"]), "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)
    target = str(tmp_path / "out")
    assert main(["quantize", "clover-tiny", target, "--format", "q4", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    as_it_is = {"as it is": "bf16"}
    rows = [
        [(r["class"], as_it_is.get(r["format"], r["format"]), r["group"], r[size]) for r in table]
        for table, size in ((fits["weights"], "bytes"), (told["classes"], "bytes_after"))
    ]
    assert sorted(rows[0]) == sorted(rows[1])
    assert not (tmp_path / "out").exists()


def test_the_report_names_classes_errors_and_the_worst_tensor(tmp_path, capsys):
    flags = ["--format", "q4", "--keep", "lm_head.weight=bf16", "--verify"]
    assert main(["quantize", "clover-tiny", str(tmp_path / "out"), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("experts        q4-32") for line in lines)
    assert any(line.startswith("head           as it is") for line in lines)
    assert any(line.startswith("worst: model.") and line.endswith("%") for line in lines)
    assert lines[-1] == f"wrote {tmp_path / 'out'}: 1 file of weights"


def test_flags_without_effect_beside_a_dry_run_are_errors(tmp_path, capsys):
    flags = ["--format", "q4", "--dry-run", "--verify"]
    assert main(["quantize", "clover-tiny", str(tmp_path / "out"), *flags]) == 2
    assert "CRT-1011" in capsys.readouterr().err


def test_an_interrupt_leaves_what_a_resume_goes_on_with(tmp_path):
    target = tmp_path / "out"
    arguments = ["clover-tiny", target, "--format", "q8"]
    stopped = child(INTERRUPTED, *arguments)
    assert stopped.returncode == 128 + signal.SIGINT
    assert "--resume goes on" in stopped.stderr
    assert "interrupted" in stopped.stderr
    assert not target.exists()
    assert main(["quantize", *map(str, arguments), "--resume"]) == 0
    assert target.is_dir()
    assert os.listdir(tmp_path) == ["out"]


def test_a_tensor_of_hundreds_of_megabytes_takes_a_fraction_of_its_size(tmp_path):
    values = quantised.tensors()
    del values["lm_head.weight"]
    # the last in the file, whose data is then a hole of the disk
    del values[EMBED]
    small = quantised.write(tmp_path / "small", values | {EMBED: np.zeros((1, 128), np.float32)})
    blob = (small / "model.safetensors").read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    start, _ = header[EMBED]["data_offsets"]
    size = VOCAB * 128 * 2
    header[EMBED] = {
        "dtype": "BF16",
        "shape": [VOCAB, 128],
        "data_offsets": [start, start + size],
    }
    source = quantised.write(tmp_path / "large", values, vocab_size=VOCAB, tie_word_embeddings=True)
    rest = blob[8 + length : 8 + length + start]
    (source / "model.safetensors").write_bytes(checkpoints.with_header(header, rest))
    with (source / "model.safetensors").open("ab") as file:
        file.truncate(file.tell() + size)
    # the first run loads what any run needs: libraries, generated code
    first = ["clover-tiny", tmp_path / "first"]
    done = child(MEASURED, source, tmp_path / "out", *first, "--format", "q4")
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout.split()[-1]) * 1024
    assert size > 300_000_000
    # slices of 4 MB, a few a thread, and the scales of one tensor
    assert grown < 120 * MB
