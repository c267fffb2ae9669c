"""fit: what it counts is what a load allocates, and the release weighs what its shapes say."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import clover_rt
from clover_rt import builtin
from clover_rt.api.fitting import fits
from clover_rt.backend import Usage
from clover_rt.fit import Setting, render, taken
from clover_rt.fit import report as count
from clover_rt.fit.weights import SCHEMES, class_of, shares, stored_as
from clover_rt.plan import Place
from clover_rt.plugins import open_device
from clover_rt.weights import Checkpoint, load_weights
from tests import golden
from tests.toy import ToyDevice
from tests.unit import checkpoints

ROOT = Path(__file__).resolve().parents[2]
BUFFERS = ("kv", "recurrent", "tables", "step", "workspace", "scratch")
BUILTIN = builtin.path()
CHECKPOINTS = {
    "builtin": BUILTIN,
    "clover_tiny": golden.checkpoint("clover_tiny"),
    "clover_tiny_b8": golden.checkpoint("clover_tiny_b8"),
    "qwen35moe_tiny": golden.checkpoint("qwen35moe_tiny"),
}

# the release's sizes by hand: parameters by class, 2 bytes each
RELEASE = {
    "experts": 40 * 256 * 3 * 2048 * 512,
    "shared expert": 40 * (3 * 2048 * 512 + 2048),
    "router": 40 * 256 * 2048,
    # the mixer of the trunk, and the preview's right taps and three vectors
    "gdn": 30 * (33_718_464 + 8192 * 3 + 3 * 32),
    "attention": 10 * 27_263_488,
    "embeddings": 248_320 * 2048,
    "head": 248_320 * 2048,
    "norms": 81 * 2048,
}
# GB by the same shapes: bytes a weight are 1.0625 for q8, 0.5 + 2 / g for q4
STORED_GB = {
    "q8": 36.9,
    "q4-32 experts, rest bf16": 23.0,
    "q4-64 experts, rest bf16": 22.0,
    "q4-128 experts, rest bf16": 21.5,
    "q4-32 experts, rest q8": 20.7,
    "q4-64 experts, rest q8": 19.7,
    "q4-128 experts, rest q8": 19.2,
    "q4-32": 19.5,
    "q4-64": 18.5,
    "q4-128": 17.9,
}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Return the folder of the release's headers: files of full size without data."""
    folder = tmp_path_factory.mktemp("release")
    make = runpy.run_path(str(ROOT / "benchmarks" / "make_release.py"))["make_release"]
    make(folder, layers=40, vocab=248_320, sparse=True)
    return folder


@pytest.fixture(scope="module")
def report(release):
    """Return what is counted of the release, at 4096 tokens and two slots."""
    return fits(release, context=4096, slots=2)


@pytest.fixture
def allocated(monkeypatch):
    """Count the bytes that the cpu device is really asked for, by usage."""
    kind = type(open_device("cpu")[1])
    real = kind.alloc
    counts: Counter[Usage] = Counter()

    def alloc(device, nbytes, usage):
        counts[usage] += nbytes
        return real(device, nbytes, usage)

    monkeypatch.setattr(kind, "alloc", alloc)
    return counts


def counted(report):
    """Return the bytes of buffers that a report counts on its device."""
    return sum(report["devices"][0][part] for part in BUFFERS)


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_a_load_and_its_passes_allocate_what_was_counted(name, precision, allocated):
    settings = {"context": 768, "precision": precision, "slots": 3}
    if name == "clover_tiny":
        settings["context"] = 512
    report = fits(CHECKPOINTS[name], **settings)
    assert not allocated, "counting must not allocate"
    with clover_rt.load(CHECKPOINTS[name], **settings) as model:
        state = report["devices"][0]["kv"] + report["devices"][0]["recurrent"]
        assert state < allocated[Usage.STATE] <= state + report["devices"][0]["tables"]
        modes = ["ar"] if name.startswith("qwen") else ["diffusion", "ar", "self-spec"]
        # prompts of every row bucket; greedy passes return one candidate a row, sampled ones 64
        lengths = (settings["context"] - 60, 64, 32, 16)
        runs = [(n, m, t) for n in lengths for m in modes for t in (0, 1.0)]
        for length, mode, temperature in runs:
            if mode == "self-spec" and temperature:
                continue
            options = {"mode": mode, "temperature": temperature, "ignore_eos": True}
            for _ in model.generate([5] * length, max_new_tokens=40, **options):
                pass
        real = sum(allocated.values())
    # which free buffer a program takes depends on the programs before it, so neither order of
    # binding is an upper bound of the other: both ways within 2 %
    assert abs(counted(report) - real) <= 0.02 * real


def test_the_release_weighs_what_its_shapes_say(report):
    assert {row["class"]: row["parameters"] for row in report["weights"]} == RELEASE
    total = sum(row["bytes"] for row in report["weights"])
    assert total == 2 * sum(RELEASE.values()) == 2 * (34_660_610_688 + 740_160)
    assert report["devices"][0]["prepared"] + report["devices"][0]["mapped"] >= total


def test_the_release_keeps_the_state_that_its_shapes_say(report):
    device = report["devices"][0]
    # float32: 10 layers, k and v, 2 heads of 256; one slot of two is kept back
    assert device["kv"] == 4096 * 10 * 2 * 2 * 256 * 4
    memory, ring = 30 * 32 * 128 * 128 * 4, 30 * 3 * 8192 * 4
    # a tape row: u, k and v before their norms, g and beta
    tape = 30 * 32 * (8192 + 2048 + 4096 + 2 * 32) * 4
    assert device["recurrent"] == 2 * (memory + ring + tape)


def test_the_release_in_other_formats_has_the_known_sizes(release):
    weights = load_weights(Checkpoint.open(release))
    sizes = {s.name: stored_as(weights, s) / 1e9 for s in SCHEMES}
    assert sizes == pytest.approx(STORED_GB, abs=0.06)


def test_bf16_fits_no_card_and_four_bits_fit_32_gb(report):
    cards = {b["name"]: b for b in report["budgets"]}
    assert not any(cards[n]["fits"] or cards[n]["largest_context"] for n in ("16 GB", "32 GB"))
    assert cards["32 GB"]["short"] > 37e9
    q4 = next(row for row in report["storage"] if row["name"] == "q4-64")
    assert q4["largest_context"]["32 GB"] == 131_072
    assert q4["largest_context"]["16 GB"] == 0


def test_the_largest_context_fits_and_a_page_more_does_not(release, report):
    q4 = next(row for row in report["storage"] if row["name"] == "q4-64")
    saved = sum(row["bytes"] for row in report["weights"]) - q4["weights"]
    card = report["budgets"][1]
    best = q4["largest_context"][card["name"]]
    assert 0 < best < 131_072
    room = card["bytes"] - card["reserve"]

    checkpoint, cpu = Checkpoint.open(release), open_device("cpu")[1]
    weights = load_weights(checkpoint)

    def need(context):
        at = taken(checkpoint.config, weights, cpu, cpu, Setting(), context)
        return at[Place.DEVICE].total - saved

    assert need(best) <= room
    # scratch grows in steps, and the largest step is reserved: at most that much is left
    assert need(best + 64) > room - 32_000_000


def test_a_tied_head_is_counted_once(tmp_path):
    values = {n: v for n, v in checkpoints.tensors().items() if n != "lm_head.weight"}
    fields = checkpoints.config(tie_word_embeddings=True)
    folder = checkpoints.write(tmp_path, values, fields)
    rows = {row.name: row for row in shares(load_weights(Checkpoint.open(folder)))}
    assert "head" not in rows and rows["embeddings"].parameters == 20 * 8


def test_every_weight_has_a_class():
    for folder in CHECKPOINTS.values():
        weights = load_weights(Checkpoint.open(folder))
        assert all(class_of(name) for name in weights)
        total = sum(row.bytes for row in shares(weights))
        assert total == Checkpoint.open(folder).nbytes


def test_more_slots_take_more_state_and_no_more_weights():
    two, four = (fits(BUILTIN, context=256, slots=n)["devices"][0] for n in (2, 4))
    assert four["recurrent"] == 2 * two["recurrent"]
    assert four["kv"] == 3 * two["kv"]
    assert (four["mapped"], four["prepared"]) == (two["mapped"], two["prepared"])


def test_the_text_says_what_fits_where(report):
    text = render(report)
    assert "weights on disk 69.32 GB" in text
    for name in ("16 GB", "24 GB", "32 GB", "this machine", "q4-64 experts, rest bf16"):
        assert name in text


def test_the_command_prints_one_json_object():
    code = "import sys; from clover_rt.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "fit", "--context", "256", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert (report["schema"], report["context"]) == (1, 256)
    assert done.stderr == ""


def test_what_a_device_lacks_is_counted_on_the_host():
    checkpoint, cpu = Checkpoint.open(BUILTIN), open_device("cpu")[1]
    weights = load_weights(checkpoint)
    device = ToyDevice("toy", ["linear"])
    at = taken(checkpoint.config, weights, device, cpu, Setting(), 256)
    whole = sum(row.bytes for row in shares(weights))
    assert at[Place.DEVICE].weights + at[Place.HOST].weights == whole
    # only products run on the device: what attention and the recurrence keep is on the host
    assert (at[Place.DEVICE].kv, at[Place.DEVICE].recurrent) == (0, 0)
    assert at[Place.HOST].kv > 0 and at[Place.HOST].recurrent > 0
    assert at[Place.DEVICE].workspace > 0


def test_weights_that_a_kernel_repacks_are_counted_as_it_says():
    checkpoint, cpu = Checkpoint.open(BUILTIN), open_device("cpu")[1]
    weights = load_weights(checkpoint)
    device = ToyDevice("toy", ["linear"])
    device.kernels["linear"].prepared_bytes = lambda sig: 2 * sig["N"] * sig["K"]
    at = taken(checkpoint.config, weights, device, cpu, Setting(), 256)[Place.DEVICE]
    plain = ToyDevice("toy", ["linear"])
    stored = taken(checkpoint.config, weights, plain, cpu, Setting(), 256)[Place.DEVICE]
    # the file is in bf16: two bytes a number too
    assert (at.prepared, at.mapped) == (stored.mapped, 0)


def test_a_buffer_over_the_binding_limit_is_told():
    checkpoint, cpu = Checkpoint.open(BUILTIN), open_device("cpu")[1]
    cpu.max_binding_bytes = 1000
    weights = load_weights(checkpoint)
    found = count(checkpoint.config, weights, cpu, cpu, Setting(), 256)
    assert found["devices"][0]["is_over_binding"]
    assert "over what one binding holds" in render(found)
