"""Damaged and incomplete checkpoint folders: the message names the file, the place, both sizes."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.errors import BadCheckpoint, CloverError
from clover_rt.weights import Checkpoint
from clover_rt.weights.header import parse_header
from clover_rt.weights.json_file import MAX_JSON_BYTES
from clover_rt.weights.tensor_file import TensorFile

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7000000000\n"
PAGE = mmap.PAGESIZE
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def failure(folder: Path) -> BadCheckpoint:
    with pytest.raises(BadCheckpoint) as caught:
        Checkpoint.open(folder)
    assert caught.value.fix
    return caught.value


def with_weights(folder: Path, blob: bytes) -> Path:
    checkpoints.write(folder)
    (folder / "model.safetensors").write_bytes(blob)
    return folder


def test_a_path_that_is_no_folder_is_named(tmp_path):
    error = failure(tmp_path / "absent")
    assert (error.code, "does not exist" in error.evidence) == ("CRT-1101", True)
    (tmp_path / "file").write_text("x")
    error = failure(tmp_path / "file")
    assert (error.code, "is a file" in error.evidence) == ("CRT-1101", True)


def test_a_folder_without_a_configuration_lists_what_it_has(tmp_path):
    (tmp_path / "model.gguf").write_text("x")
    error = failure(tmp_path)
    assert error.code == "CRT-1102"
    assert "no config.json" in error.evidence
    assert "model.gguf" in error.evidence


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json_is_named_with_line_and_column(tmp_path, name):
    checkpoints.write(tmp_path, generation={})
    (tmp_path / name).write_text('{"a": 1,\n  "b": }')
    error = failure(tmp_path)
    assert error.code == "CRT-1103"
    assert f"{tmp_path / name}: line 2, column 8" in error.evidence


def test_json_that_is_no_object_is_refused(tmp_path):
    checkpoints.write(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    error = failure(tmp_path)
    assert (error.code, "holds a list" in error.evidence) == ("CRT-1106", True)


def test_text_that_is_not_unicode_is_refused(tmp_path):
    checkpoints.write(tmp_path)
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff\xfe"}')
    assert failure(tmp_path).code == "CRT-1103"


def test_a_configuration_error_names_the_file(tmp_path):
    checkpoints.write(tmp_path, fields=checkpoints.config(hidden_size=None))
    assert str(tmp_path / "config.json") in failure(tmp_path).evidence


def test_a_folder_without_weights_lists_what_it_has(tmp_path):
    checkpoints.write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    error = failure(tmp_path)
    assert error.code == "CRT-1104"
    assert "other.safetensors" in error.evidence


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_git_lfs_pointer_is_recognised(tmp_path, name):
    checkpoints.write(tmp_path)
    (tmp_path / name).write_bytes(POINTER)
    error = failure(tmp_path)
    assert error.code == "CRT-1140"
    assert name in error.evidence
    assert "git lfs pull" in error.fix


def test_a_truncated_file_is_named_with_both_sizes_and_the_tensor(tmp_path):
    values = {"a": np.zeros(8, np.float32), "b": np.zeros(4, np.float32)}
    whole = checkpoints.encode(values)
    error = failure(with_weights(tmp_path, whole[:-1]))
    assert error.code == "CRT-1141"
    assert f"has {len(whole) - 1} bytes of {len(whole)} expected" in error.evidence
    assert "1 of 2 tensors, 'b' the last" in error.evidence


@pytest.mark.parametrize("size", [0, 7, 20])
def test_a_file_cut_inside_its_header_is_truncated(tmp_path, size):
    blob = checkpoints.encode({"a": np.zeros(8, np.float32)})
    error = failure(with_weights(tmp_path, blob[:size]))
    assert error.code == "CRT-1141"
    assert f"has {size} bytes of" in error.evidence


def test_bytes_behind_the_last_tensor_are_refused(tmp_path):
    blob = checkpoints.encode({"a": np.zeros(8, np.float32)})
    error = failure(with_weights(tmp_path, blob + b"\0"))
    assert error.code == "CRT-1152"
    assert f"has {len(blob) + 1} bytes but its header describes {len(blob)}" in error.evidence


@pytest.mark.parametrize("length", [0, 100_000_001, 2**64 - 1])
def test_an_impossible_header_length_is_named(tmp_path, length):
    blob = struct.pack("<Q", length) + b"x" * 64
    error = failure(with_weights(tmp_path, blob))
    assert error.code == "CRT-1142"
    assert f"a header of {length} bytes" in error.evidence


@pytest.mark.parametrize(
    ("code", "header", "words"),
    [
        ("CRT-1143", b"{nonsense}", "its header is not JSON"),
        ("CRT-1130", b"[]", "does not begin with '{'"),
        ("CRT-1143", b"[" * 50_000, "its header is not JSON"),
        ("CRT-1154", b'{"\xff": 1}', "its header is not UTF-8"),
        ("CRT-1154", json.dumps({"a": ENTRY}).encode("utf-16"), "its header is not UTF-8"),
        ("CRT-1130", b' {"a": 1}', "does not begin with '{'"),
        ("CRT-1131", {"\ud800": ENTRY}, "'\\ud800' is not valid Unicode"),
        ("CRT-1135", {"__metadata__": {"a": 3}}, "__metadata__ is not an object of strings"),
        ("CRT-1133", {"a": ENTRY | {"shape": [1] * 33}}, "'a' has 33 dimensions"),
        ("CRT-1136", {"a": ENTRY | {"shape": [0, 2**62]}}, "'a' [0, 46"),
        ("CRT-1144", {"a": 3}, "'a' has no usable dtype"),
        ("CRT-1144", {"a": {"dtype": "F32", "shape": [2]}}, "'a' has no usable"),
        ("CRT-1144", {"a": ENTRY | {"data_offsets": [0]}}, "'a' has no usable"),
        ("CRT-1134", {"a": ENTRY | {"shape": [-2]}}, "'a' has a size or offset"),
        ("CRT-1134", {"a": ENTRY | {"shape": [True]}}, "'a' has a size or offset"),
        ("CRT-1132", {"a": ENTRY | {"dtype": 3}}, "'a' has a dtype or shape of the wrong type"),
        ("CRT-1145", {"a": ENTRY | {"dtype": "F31"}}, "'a' has the unknown dtype 'F31'"),
        ("CRT-1146", {"a": ENTRY | {"shape": [3]}}, "needs 12 bytes but data_offsets [0, 8]"),
        ("CRT-1146", {"a": ENTRY | {"data_offsets": [8, 0]}}, "hold -8"),
        ("CRT-1137", {"a": ENTRY, "b": ENTRY}, "'b' starts at data byte 0 and overlaps tensor 'a'"),
        (
            "CRT-1138",
            {"a": ENTRY, "b": ENTRY | {"data_offsets": [16, 24]}},
            "'b' starts at data byte 16 and leaves a hole behind tensor 'a', which ends at 8",
        ),
        (
            "CRT-1147",
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
            b'"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}',
            "'a' occurs twice",
        ),
        (
            "CRT-1147",
            b'{"a":{"dtype":"F16","dtype":"BF16","shape":[4],"data_offsets":[0,8]}}',
            "'dtype' occurs twice",
        ),
    ],
)
def test_a_damaged_header_names_the_tensor(tmp_path, code, header, words):
    error = failure(with_weights(tmp_path, checkpoints.with_header(header, b"\0" * 24)))
    assert words in error.evidence
    assert str(tmp_path / "model.safetensors") in error.evidence
    assert error.code == code


def test_offsets_past_the_end_are_a_truncation(tmp_path):
    blob = checkpoints.with_header(
        {"a": ENTRY | {"shape": [4], "data_offsets": [0, 16]}}, b"\0" * 8
    )
    error = failure(with_weights(tmp_path, blob))
    assert (error.code, "'a' the last" in error.evidence) == ("CRT-1141", True)


def test_metadata_may_hold_the_words_of_the_format(tmp_path):
    header = {"__metadata__": {"data_offsets": "x"}, "a": ENTRY}
    assert list(parse_header(json.dumps(header).encode(), tmp_path).entries) == ["a"]


def test_all_missing_shards_are_listed(tmp_path):
    checkpoints.write(tmp_path, shards=4)
    for i in (2, 4):
        (tmp_path / f"model-{i:05}-of-00004.safetensors").unlink()
    error = failure(tmp_path)
    assert error.code == "CRT-1149"
    assert "lists 4 shards; 2 are missing: model-00002-of-00004" in error.evidence
    assert "model-00004-of-00004.safetensors" in error.evidence


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path):
    checkpoints.write(tmp_path, shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    first, second = sorted(set(index.values()))
    checkpoints.write_index(tmp_path, index | {"ghost": first, "model.norm.weight": second})
    error = failure(tmp_path)
    assert error.code == "CRT-1150"
    assert f"'ghost' should be in {first}" in error.evidence
    assert f"'model.norm.weight' should be in {second}" in error.evidence
    assert "2 tensors" in error.evidence


def two_copies(folder: Path) -> tuple[str, dict[str, str]]:
    """Write a checkpoint whose second shard holds a copy, all zeros, of a tensor of the first."""
    checkpoints.write(folder, shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    values = checkpoints.tensors()
    part = {name: values[name] for name, shard in index.items() if "model-00002" in shard}
    part["model.norm.weight"] = np.zeros_like(values["model.norm.weight"])
    (folder / "model-00002-of-00002.safetensors").write_bytes(checkpoints.encode(part))
    return "model.norm.weight", index


@pytest.mark.parametrize("place", [1, 2])
def test_of_two_tensors_of_one_name_the_index_decides_and_a_warning_tells(tmp_path, place):
    name, index = two_copies(tmp_path)
    shard = f"model-{place:05}-of-00002.safetensors"
    checkpoints.write_index(tmp_path, index | {name: shard})
    opened = Checkpoint.open(tmp_path)
    want = checkpoints.tensors()[name] if place == 1 else np.zeros(checkpoints.HIDDEN)
    np.testing.assert_array_equal(opened.tensors[name].array, want)
    (warning,) = opened.warnings
    for words in (name, shard, "model.safetensors.index.json decides"):
        assert words in warning


def test_a_tensor_in_two_shards_that_the_index_does_not_name_is_refused(tmp_path):
    name, index = two_copies(tmp_path)
    del index[name]
    checkpoints.write_index(tmp_path, index)
    error = failure(tmp_path)
    assert error.code == "CRT-1155"
    for words in (name, "model-00001-of-00002", "model-00002-of-00002"):
        assert words in error.evidence


def test_an_index_that_places_a_tensor_twice_is_refused(tmp_path):
    two_copies(tmp_path)
    path = tmp_path / "model.safetensors.index.json"
    extra = '"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors", '
    path.write_text(path.read_text().replace('"weight_map": {', extra))
    error = failure(tmp_path)
    assert (error.code, "'model.norm.weight'" in error.evidence) == ("CRT-1155", True)


def test_a_file_of_64_mib_is_no_configuration(tmp_path):
    checkpoints.write(tmp_path)
    with (tmp_path / "config.json").open("ab") as stream:
        stream.truncate(MAX_JSON_BYTES + 1)
    assert failure(tmp_path).code == "CRT-1107"


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ([], "weight_map is not an object"),
        ({}, "weight_map is not an object"),
        (None, "weight_map is not an object"),
        ({"a": 3}, "weight_map['a'] = 3 is not the name of a file"),
        ({"a": "../x.safetensors"}, "weight_map['a'] = '../x.safetensors'"),
        ({"a": ".."}, "weight_map['a'] = '..'"),
        ({"a": "é" * 128}, "is not the name of a file"),
        ({"a": "x\0y"}, "weight_map['a'] = 'x\\x00y'"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path, weight_map, words):
    checkpoints.write(tmp_path)
    checkpoints.write_index(tmp_path, weight_map)
    error = failure(tmp_path)
    assert (error.code, words in error.evidence) == ("CRT-1148", True)


def test_files_that_the_index_does_not_list_are_ignored(tmp_path):
    checkpoints.write(tmp_path, shards=2)
    (tmp_path / "model.safetensors").write_bytes(b"stray")
    (tmp_path / "consolidated.safetensors").write_bytes(POINTER)
    assert len(Checkpoint.open(tmp_path).tensors) == len(checkpoints.shapes())


def test_an_empty_tensor_is_no_damage(tmp_path):
    path = tmp_path / "x.safetensors"
    values = {"a": np.zeros((0, 3), np.float32), "b": np.ones(2, np.float32)}
    path.write_bytes(checkpoints.encode(values))
    file = TensorFile(path)
    assert file.array(file.entries["a"], np.dtype("<f4")).shape == (0, 3)
    np.testing.assert_array_equal(file.array(file.entries["b"], np.dtype("<f4")), [1, 1])


class Map:
    """Records what a file asks of its memory map."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def madvise(self, option: int, start: int, length: int) -> None:
        self.calls.append((start, length))


@pytest.mark.parametrize(
    ("start", "end", "calls"),
    [
        (1, 3 * PAGE + 1, [(PAGE, 2 * PAGE)]),
        (PAGE, 2 * PAGE, [(PAGE, PAGE)]),
        (1, 2 * PAGE - 1, []),
        (5, 9, []),
    ],
)
def test_only_whole_pages_inside_a_piece_are_let_go(tmp_path, monkeypatch, start, end, calls):
    monkeypatch.setattr(mmap, "MADV_DONTNEED", 4, raising=False)
    path = tmp_path / "x.safetensors"
    path.write_bytes(checkpoints.encode({"a": np.zeros(4 * PAGE, np.int8)}))
    file = TensorFile(path)
    file._map = recorder = Map()
    file.release(start, end)
    assert recorder.calls == calls


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_no_file_of_garbage_raises_anything_but_a_checkpoint_error(tmp_path_factory, blob):
    path = tmp_path_factory.getbasetemp() / "garbage.safetensors"
    path.write_bytes(blob)
    with pytest.raises(CloverError):
        TensorFile(path)


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_no_header_of_garbage_raises_anything_but_a_checkpoint_error(blob):
    try:
        parse_header(blob, Path("garbage.safetensors"))
    except CloverError:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F4"]) | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 30), min_size=2, max_size=2) | JSON,
    },
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), ENTRIES | JSON, max_size=3))
def test_no_header_of_random_entries_raises_anything_but_a_checkpoint_error(header):
    try:
        entries = parse_header(json.dumps(header).encode(), Path("random.safetensors")).entries
    except CloverError:
        return
    # what is accepted fills the data without holes
    ends = sorted((e.start, e.start + e.nbytes) for e in entries.values())
    assert [start for start, _ in ends] == [0, *(end for _, end in ends)][: len(ends)]
