"""Writing a quantised checkpoint: what is there at the end, after a kill, and when it cannot be."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.weights import Checkpoint
from tests.unit import checkpoints, quantised

SHARD = 120_000
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
KEPT_OUT = ("dtype", "torch_dtype")
Usage = namedtuple("Usage", "total used free")


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def refused(source, target, **options):
    with pytest.raises((BadInput, BadCheckpoint)) as caught:
        quantised.make(source, target, **options)
    assert caught.value.fix
    return caught.value


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the files of the built-in model in q4, in several shards."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    quantised.make(quantised.PROTO, folder, shard_bytes=SHARD)
    return files(folder)


def test_the_result_is_a_folder_with_an_index_and_the_small_files(whole):
    index = json.loads(whole["model.safetensors.index.json"])
    shards = sorted(name for name in whole if name.endswith(".safetensors"))
    assert len(shards) > 3
    assert shards[-1] == f"model-{len(shards):05}-of-{len(shards):05}.safetensors"
    assert sorted(set(index["weight_map"].values())) == shards
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert whole[name] == (quantised.PROTO / name).read_bytes()
    assert not [name for name in whole if name.endswith(".part") or name == "plan.json"]


def test_config_says_all_but_how_the_weights_were_stored(tmp_path):
    config = json.loads((quantised.PROTO / "config.json").read_text())
    nested = {"model_type": "clover_moe", "torch_dtype": "bfloat16", "text_config": config}
    source = tmp_path / "in"
    shutil.copytree(quantised.PROTO, source)
    (source / "config.json").write_text(json.dumps(nested))
    quantised.make(source, tmp_path / "out")
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    plain = {name: value for name, value in config.items() if name not in KEPT_OUT}
    assert made == {"model_type": "clover_moe", "text_config": plain}


def test_each_file_names_the_bytes_that_it_was_made_of(whole, tmp_path):
    source = quantised.tensors()
    for name in (n for n in whole if n.endswith(".safetensors")):
        length = int.from_bytes(whole[name][:8], "little")
        header = json.loads(whole[name][8 : 8 + length])
        told = header.pop("__metadata__")
        digest = hashlib.sha256()
        stems = dict.fromkeys(n.removesuffix(".codes").removesuffix(".scale") for n in header)
        for stem in stems:
            digest.update(source[stem].tobytes())
        assert told["source_sha256"] == digest.hexdigest()
        assert told["format"] == "clover-rt-quantised"
        assert (told["format_version"], told["group"]) == ("1", "32")
        assert length % 8 == 0


def test_the_layout_of_the_files_does_not_change_the_numbers(tmp_path, whole):
    values = quantised.tensors()
    # in another order, in three shards
    source = quantised.write(tmp_path / "in", dict(sorted(values.items())), shards=3)
    quantised.make(source, tmp_path / "out", shard_bytes=SHARD)
    made = files(tmp_path / "out")
    for name in whole:
        if name.endswith((".safetensors", ".index.json")):
            assert made[name] == whole[name]


def test_parts_that_are_not_run_are_left_out_and_counted(tmp_path):
    extra = {"mtp.fc.weight": np.ones((2, 2), np.float32)}
    source = quantised.write(tmp_path / "in", quantised.tensors() | extra)
    found = quantised.make(source, tmp_path / "out")
    assert found["skipped"] == {"mtp.*": 1}
    assert not [name for name in quantised.read(tmp_path / "out") if "mtp" in name]


def test_a_dry_run_gives_the_sizes_of_the_result_and_writes_nothing(tmp_path):
    found = quantised.make(quantised.PROTO, tmp_path / "out", dry_run=True)
    assert not list(tmp_path.iterdir())
    quantised.make(quantised.PROTO, tmp_path / "out")
    stored = quantised.read(tmp_path / "out")
    assert found["bytes_after"] == sum(value.nbytes for value in stored.values())
    assert found["bytes_before"] == sum(v.nbytes for v in quantised.tensors().values())
    assert sum(row["bytes_after"] for row in found["classes"]) == found["bytes_after"]


def test_progress_counts_every_byte_of_the_source(tmp_path):
    told = []
    quantised.make(
        quantised.PROTO,
        tmp_path / "out",
        check=True,
        on_progress=lambda done, total, what: told.append((what, done, total)),
    )
    size = sum(value.nbytes for value in quantised.tensors().values())
    for phase in ("quantising", "verifying"):
        assert [t for t in told if t[0] == phase][-1] == (phase, size, size)
        done = [d for what, d, _ in told if what == phase]
        assert done == sorted(done)


# a run that is killed


def run(target: Path, kill_at: int, ticks: multiprocessing.Value) -> None:
    """Quantise and count moments: operations on files, and progress; die at one of them."""

    def tick() -> None:
        ticks.value += 1
        if ticks.value == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(lambda event, _: tick() if event in EVENTS else None)
    quantised.make(
        quantised.PROTO,
        target,
        shard_bytes=SHARD,
        check=True,
        resume=True,
        on_progress=lambda *_: tick(),
    )


def in_child(target: Path, kill_at: int = 0) -> tuple[int, int]:
    """Return (exit code, moments) of a run in a process of its own."""
    fork = multiprocessing.get_context("fork")
    ticks = fork.Value("q", 0)
    child = fork.Process(target=run, args=(target, kill_at, ticks))
    child.start()
    child.join()
    return child.exitcode, ticks.value


def test_a_run_killed_at_any_moment_resumes_to_the_same_files(tmp_path, whole):
    code, count = in_child(tmp_path / "counted")
    assert code == 0
    picked = random.Random(7).sample(range(1, count - 6), 10)
    # and each of the last steps, in which the result gets its name
    for moment in sorted([*picked, *range(count - 6, count + 1)]):
        target = tmp_path / f"killed-{moment}" / "out"
        target.parent.mkdir()
        assert in_child(target, moment)[0] == -signal.SIGKILL
        quantised.make(quantised.PROTO, target, shard_bytes=SHARD, resume=True)
        assert files(target) == whole
        assert [p.name for p in target.parent.iterdir()] == ["out"]


def test_a_resume_does_not_write_finished_files_again(tmp_path, whole):
    target = tmp_path / "out"
    _, count = in_child(tmp_path / "counted")
    in_child(target, count // 2)
    held = tmp_path / "out.partial" / "checkpoint"
    before = {p.name: p.stat().st_ino for p in held.glob("*.safetensors")}
    assert before
    quantised.make(quantised.PROTO, target, shard_bytes=SHARD, resume=True)
    after = {p.name: p.stat().st_ino for p in target.glob("*.safetensors")}
    assert before.items() <= after.items()


@pytest.fixture
def leftover(tmp_path):
    """Return a target whose run was killed in the middle."""
    target = tmp_path / "out"
    _, count = in_child(tmp_path / "counted")
    in_child(target, count // 2)
    assert (tmp_path / "out.partial").is_dir()
    return target


def test_a_leftover_is_reported_and_left_alone(leftover):
    held = leftover.with_name("out.partial") / "checkpoint"
    before = files(held)
    error = refused(quantised.PROTO, leftover, shard_bytes=SHARD)
    assert error.code == "CRT-1211"
    assert "out.partial" in error.evidence
    assert "--resume" in error.fix
    assert files(held) == before


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"form": "q8"}, 'format of its plan: "q4" then, "q8" now'),
        ({"keep": ["lm_head.weight=bf16"]}, "keep of its plan: [] then"),
        ({"shard_bytes": 2 * SHARD}, "shards of its plan"),
    ],
    ids=["format", "keep", "shards"],
)
def test_a_leftover_of_other_settings_is_refused(leftover, options, field):
    error = refused(quantised.PROTO, leftover, **{"shard_bytes": SHARD, "resume": True} | options)
    assert error.code == "CRT-1212"
    assert field in error.evidence


def test_a_leftover_of_another_source_is_refused(leftover, tmp_path):
    source = tmp_path / "in"
    shutil.copytree(quantised.PROTO, source)
    os.utime(source / "model.safetensors", ns=(1, 1))
    error = refused(source, leftover, shard_bytes=SHARD, resume=True)
    assert (error.code, "source of its plan" in error.evidence) == ("CRT-1212", True)


def test_a_folder_that_is_no_leftover_is_not_taken_up(tmp_path):
    (tmp_path / "out.partial" / "checkpoint").mkdir(parents=True)
    error = refused(quantised.PROTO, tmp_path / "out", resume=True)
    assert (error.code, "plan.json" in error.evidence) == ("CRT-1212", True)


# targets that cannot be written


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_target_that_exists_is_left_alone(tmp_path, kind, resume):
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("x")
    else:
        target.symlink_to("nowhere")
    error = refused(quantised.PROTO, target, resume=resume)
    assert (error.code, str(target) in error.evidence) == ("CRT-1210", True)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_root_of_the_file_system_is_a_target_that_exists():
    error = refused(quantised.PROTO, Path("/"))
    assert (error.code, error.evidence) == ("CRT-1210", "/ exists")


def test_too_little_room_is_found_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 1000, 1000))
    error = refused(quantised.PROTO, tmp_path / "out")
    assert error.code == "CRT-1213"
    assert "1,000 are free" in error.evidence
    assert not list(tmp_path.iterdir())


def test_a_target_in_no_folder_is_refused(tmp_path):
    error = refused(quantised.PROTO, tmp_path / "absent" / "out")
    assert (error.code, str(tmp_path / "absent") in error.evidence) == ("CRT-1215", True)


def test_a_target_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    # root may write everywhere, so the refusal is the system's word and not a mode
    def deny(self, *_, **__):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", deny)
    error = refused(quantised.PROTO, tmp_path / "out")
    assert error.code == "CRT-1215"
    assert f"{tmp_path / 'out.partial'}: Read-only file system" in error.evidence


def test_a_disk_that_fills_up_is_an_error_and_the_work_stays(tmp_path, monkeypatch, whole):
    synced, fsync = [], os.fsync

    def full(handle):
        synced.append(handle)
        if len(synced) > 4:
            raise OSError(28, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        error = refused(quantised.PROTO, tmp_path / "out", shard_bytes=SHARD)
    assert (error.code, "No space left" in error.evidence) == ("CRT-1215", True)
    quantised.make(quantised.PROTO, tmp_path / "out", shard_bytes=SHARD, resume=True)
    assert files(tmp_path / "out") == whole


def test_two_runs_do_not_share_a_target(leftover):
    handle = os.open(leftover.with_name("out.partial"), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        error = refused(quantised.PROTO, leftover, shard_bytes=SHARD, resume=True)
    finally:
        os.close(handle)
    assert error.code == "CRT-1214"


# sources that cannot be quantised


@pytest.mark.parametrize(
    ("number", "words"), [(np.nan, "is nan"), (-np.inf, "is -inf"), (1e9, "is too large")]
)
def test_a_number_without_a_code_is_named_with_tensor_and_index(tmp_path, number, words):
    name = "model.layers.2.mlp.experts.down_proj"
    values = {n: np.array(v) for n, v in quantised.tensors().items()}
    values[name][5, 100, 3] = number
    source = quantised.write(tmp_path / "in", values)
    error = refused(source, tmp_path / "out")
    assert error.code == "CRT-1206"
    assert str(source / "model.safetensors") in error.evidence
    assert f"{name!r}[5, 100, 3] " in error.evidence
    assert words in error.evidence
    assert not (tmp_path / "out").exists()


def test_tensors_that_do_not_fit_the_configuration_are_refused(tmp_path):
    values = quantised.tensors()
    del values["lm_head.weight"]
    error = refused(quantised.write(tmp_path / "in", values), tmp_path / "out")
    assert error.code == "CRT-1160"


# a result that is read back


def test_verify_gives_the_errors_that_the_formulas_give(tmp_path):
    found = quantised.make(quantised.PROTO, tmp_path / "out", check=True)["verified"]
    stored, values = quantised.read(tmp_path / "out"), quantised.tensors()
    off = {}
    for name, value in values.items():
        if name + ".codes" in stored:
            exact = value.astype(np.float64)
            error = np.square(quantised.decoded(stored, name) - exact).sum()
            off[name] = (error, np.square(exact).sum())
    worst = max(off, key=lambda name: off[name][0] / off[name][1])
    assert found["worst"]["tensor"] == worst
    # decoded in float32 there
    close = pytest.approx(np.sqrt(off[worst][0] / off[worst][1]), rel=1e-4)
    assert found["worst"]["relative_error"] == close
    experts = [sums for name, sums in off.items() if ".experts." in name]
    total = np.sqrt(sum(e for e, _ in experts) / sum(s for _, s in experts))
    (row,) = (row for row in found["classes"] if row["class"] == "experts")
    assert row["relative_error"] == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("part", ["codes", "scale", "kept"])
def test_verify_finds_a_flipped_bit(tmp_path, monkeypatch, part):
    from clover_rt.quantise import work

    finish = work.Work.finish
    name = "model.layers.0.mlp.gate.weight" if part == "kept" else "lm_head.weight." + part

    def damage(self, checkpoint):
        finish(self, checkpoint)
        entry = Checkpoint.open(self.folder).tensors
        file = next(iter(entry.values())).file
        at = file.nbytes - sum(e.nbytes for e in file.entries.values()) + file.entries[name].start
        blob = bytearray(file.path.read_bytes())
        # the sign of a code, the exponent of a scale
        blob[at + (part == "scale")] ^= 0x40
        file.path.write_bytes(blob)

    monkeypatch.setattr(work.Work, "finish", damage)
    error = refused(quantised.PROTO, tmp_path / "out", check=True)
    assert error.code == "CRT-1220"
    assert name.removesuffix(".codes").removesuffix(".scale") in error.evidence
    assert not (tmp_path / "out").exists()


def test_tied_embeddings_are_stored_once(tmp_path):
    values = quantised.tensors()
    del values["lm_head.weight"]
    source = quantised.write(tmp_path / "in", values, tie_word_embeddings=True)
    quantised.make(source, tmp_path / "out")
    assert "lm_head.weight.codes" not in quantised.read(tmp_path / "out")


def test_a_result_is_not_written_into_a_source_that_is_its_target(tmp_path):
    source = checkpoints.write(tmp_path / "in")
    assert refused(source, source, keep=["*=bf16"]).code == "CRT-1210"
