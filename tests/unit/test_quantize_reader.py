"""Quantised files as weights of the graph, and every way in which such a file can be wrong."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clover_rt
from clover_rt.errors import BadCheckpoint, CloverError
from clover_rt.spec import Format
from clover_rt.weights import Checkpoint, check_scales, load_weights
from tests.unit import checkpoints, quantised

QKV = "model.layers.0.linear_attn.in_proj_qkv.weight"
UP = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a folder with the built-in model in q4."""
    folder = tmp_path_factory.mktemp("quantised") / "q4"
    quantised.make(quantised.PROTO, folder)
    return folder


@pytest.fixture(scope="module")
def parts(whole):
    """Return (header, data) of its file."""
    blob = (whole / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


@pytest.fixture
def changed(whole, tmp_path):
    """Return a maker of a checkpoint with another header or other data."""

    def make(header, data):
        for name in ("config.json", "generation_config.json"):
            (tmp_path / name).write_bytes((whole / name).read_bytes())
        (tmp_path / "model.safetensors").write_bytes(checkpoints.with_header(header, data))
        return tmp_path

    return make


def refused(folder):
    with pytest.raises(BadCheckpoint) as caught:
        checkpoint = Checkpoint.open(folder)
        check_scales(checkpoint.tensors)
        load_weights(checkpoint)
    assert caught.value.fix
    return caught.value


def copy(header):
    return json.loads(json.dumps(header))


@pytest.mark.parametrize(("form", "group"), [("q4", 32), ("q4", 64), ("q8", 32)])
@pytest.mark.parametrize("layout", ["fused", "split", "shards"])
def test_weights_are_what_the_formulas_say(tmp_path, form, group, layout):
    values = quantised.tensors()
    if layout == "split":
        values = quantised.split(values)
    source = quantised.write(tmp_path / "in", values, shards=3 if layout == "shards" else 1)
    size = 200_000 if layout == "shards" else 10**9
    quantised.make(source, tmp_path / "out", form, group, shard_bytes=size)
    stored = quantised.read(tmp_path / "out")
    numbers = {n: quantised.decoded(stored, n) for n in values if n not in stored}
    numbers |= {n: v.astype(np.float64) for n, v in stored.items() if n in values}
    # the same numbers as a plain checkpoint of the same layout
    plain = {n: numbers[n].astype(np.float32) for n in values}
    assert all((plain[n] == numbers[n]).all() for n in values)
    wanted = load_weights(Checkpoint.open(quantised.write(tmp_path / "plain", plain)))
    found = load_weights(Checkpoint.open(tmp_path / "out"))
    assert found.keys() == wanted.keys()
    for name, weight in found.items():
        assert weight.shape == wanted[name].shape
        np.testing.assert_array_equal(weight.whole().values(), wanted[name].whole().values())
    assert found["layers.0.expert_up"].format is Format(form)
    assert found["layers.0.expert_up"].group == group
    assert found["embed"].format is Format.Q8


def test_codes_are_views_of_the_file_and_survive_a_release(whole):
    weights = load_weights(Checkpoint.open(whole))
    for name in ("layers.0.qkv", "layers.1.q", "layers.0.expert_gate"):
        weight = weights[name]
        before = weight.whole().values()
        for piece in weight.pieces:
            for array in (piece.codes, piece.scale):
                assert not array.flags.owndata and not array.flags.writeable
        rows = [piece.values() for _, piece in weight.slices(7)]
        np.testing.assert_array_equal(np.concatenate(rows), before)
        np.testing.assert_array_equal(weight.whole().values(), before)


def test_a_zero_point_a_group_is_read(parts, changed):
    header, data = copy(parts[0]), parts[1]
    shape = header[QKV + ".scale"]["shape"]
    zeros = np.random.default_rng(0).integers(0, 16, shape).astype(np.uint8)
    header[QKV + ".zero"] = {
        "dtype": "U8",
        "shape": shape,
        "data_offsets": [len(data), len(data) + zeros.size],
    }
    folder = changed(header, data + zeros.tobytes())
    found = load_weights(Checkpoint.open(folder))["layers.0.qkv"].whole().values()
    stored = quantised.read(folder)
    scale = stored[QKV + ".scale"].astype(np.float64)
    # (code - zero) * scale = (code - 8) * scale + (8 - zero) * scale
    moved = np.repeat((8.0 - zeros) * scale, 32, axis=1)
    np.testing.assert_allclose(found, quantised.decoded(stored, QKV) + moved, rtol=1e-12)


def renamed(header, before, after):
    return {after if name == before else name: entry for name, entry in header.items()}


def with_metadata(header, **fields):
    told = header["__metadata__"] | fields
    return header | {"__metadata__": {k: v for k, v in told.items() if v is not None}}


def with_entry(header, name, **fields):
    return header | {name: header[name] | fields}


# what is done to the header -> the code of the error, and words in it
WRONG = {
    "a later version": (
        lambda h: with_metadata(h, format_version="2"),
        "CRT-1190",
        "format_version = '2'",
    ),
    "no version": (lambda h: with_metadata(h, format_version=None), "CRT-1190", "None"),
    "no group": (lambda h: with_metadata(h, group=None), "CRT-1191", "group = None"),
    "an odd group": (lambda h: with_metadata(h, group="48"), "CRT-1191", "group = '48'"),
    "another group": (
        lambda h: with_metadata(h, group="64"),
        "CRT-1197",
        "4 groups for K=128; groups of 64",
    ),
    "no format": (lambda h: with_metadata(h, format=None), "CRT-1192", ".codes' is a part"),
    "no scale": (
        lambda h: renamed(h, QKV + ".scale", "model.other"),
        "CRT-1193",
        f"{QKV!r} has no '{QKV}.scale' beside .codes",
    ),
    "no codes": (
        lambda h: renamed(h, QKV + ".codes", "model.other"),
        "CRT-1193",
        f"has no '{QKV}.codes' beside .scale",
    ),
    "a whole tensor beside its parts": (
        lambda h: renamed(h, "model.norm.weight", QKV),
        "CRT-1166",
        f"{QKV!r} is there as a whole and as parts",
    ),
    "codes of a wrong type": (
        lambda h: with_entry(h, QKV + ".codes", dtype="BOOL"),
        "CRT-1195",
        f"'{QKV}.codes' is BOOL, wanted I8 or U8",
    ),
    "a scale of a wrong type": (
        lambda h: with_entry(h, QKV + ".scale", dtype="BF16"),
        "CRT-1195",
        f"'{QKV}.scale' is BF16, wanted F16",
    ),
    "q8 read as q4": (
        lambda h: with_entry(h, "lm_head.weight.codes", dtype="U8"),
        "CRT-1197",
        "4 groups for K=256",
    ),
    "a flat scale": (
        lambda h: with_entry(h, QKV + ".scale", shape=[np.prod(h[QKV + ".scale"]["shape"]).item()]),
        "CRT-1196",
        f"'{QKV}.scale' has [",
    ),
    "flat codes": (
        lambda h: with_entry(h, UP + ".codes", shape=[8 * 128, 64]),
        "CRT-1196",
        f"'{UP}.scale' has [8, 128, 4] for codes [1024, 64]",
    ),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_wrong_header_is_refused_with_file_tensor_and_field(parts, changed, case):
    change, code, words = WRONG[case]
    folder = changed(change(copy(parts[0])), parts[1])
    error = refused(folder)
    assert error.code == code
    assert str(folder / "model.safetensors") in error.evidence
    assert words in error.evidence


def test_a_zero_of_another_shape_or_for_q8_is_refused(parts, changed):
    header, data = copy(parts[0]), parts[1] + bytes(4)
    ends = [len(parts[1]), len(data)]
    zero = {"dtype": "U8", "shape": [4], "data_offsets": ends}
    assert refused(changed(header | {QKV + ".zero": zero}, data)).code == "CRT-1196"
    assert refused(changed(header | {"lm_head.weight.zero": zero}, data)).code == "CRT-1195"


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01], ids=["inf", "-inf", "nan"])
def test_a_scale_that_is_not_finite_is_refused_by_a_load(parts, changed, bits):
    header, data = parts[0], bytearray(parts[1])
    at = header[UP + ".scale"]["data_offsets"][0] + 2 * (4 * (128 * 5 + 17) + 3)
    data[at : at + 2] = struct.pack("<H", bits)
    folder = changed(header, bytes(data))
    error = refused(folder)
    assert error.code == "CRT-1198"
    assert f"'{UP}.scale'[5, 17, 3] is" in error.evidence
    with pytest.raises(BadCheckpoint) as caught:
        clover_rt.load(folder)
    assert caught.value.code == "CRT-1198"


def test_parts_in_two_files_are_refused(whole, tmp_path):
    header, data = {}, {}
    stored = quantised.read(whole)
    told = {"format": "clover-rt-quantised", "format_version": "1", "group": "32"}
    weight_map = {name: f"{int(name == QKV + '.scale')}.safetensors" for name in stored}
    kinds = {"int8": "I8", "uint8": "U8", "float16": "F16", "bfloat16": "BF16"}
    for file in set(weight_map.values()):
        header, data = {"__metadata__": told}, b""
        for name in (n for n in stored if weight_map[n] == file):
            blob = stored[name].tobytes()
            header[name] = {
                "dtype": kinds[str(stored[name].dtype)],
                "shape": list(stored[name].shape),
                "data_offsets": [len(data), len(data) + len(blob)],
            }
            data += blob
        (tmp_path / file).write_bytes(checkpoints.with_header(header, data))
    (tmp_path / "config.json").write_bytes((whole / "config.json").read_bytes())
    checkpoints.write_index(tmp_path, weight_map)
    error = refused(tmp_path)
    assert (error.code, f"'{QKV}.scale' is in 1.safetensors" in error.evidence) == (
        "CRT-1194",
        True,
    )


def test_experts_in_several_formats_are_refused(tmp_path):
    source = quantised.write(tmp_path / "in", quantised.split(quantised.tensors()))
    folders = [tmp_path / form for form in ("q4", "q8")]
    for folder in folders:
        quantised.make(source, folder, folder.name)
    name = "model.layers.0.mlp.experts.3.up_proj.weight"
    weight_map = {n: "a.safetensors" for n in quantised.read(folders[0]) if name not in n}
    weight_map |= {name + part: "b.safetensors" for part in (".codes", ".scale")}
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "config.json").write_bytes((source / "config.json").read_bytes())
    for file, folder in zip(("a", "b"), folders, strict=True):
        (mixed / f"{file}.safetensors").hardlink_to(folder / "model.safetensors")
    checkpoints.write_index(mixed, weight_map)
    error = refused(mixed)
    assert error.code == "CRT-1199"
    assert "Q4-32" in error.evidence and "Q8-32" in error.evidence


DTYPES = st.sampled_from(["I8", "U8", "F16", "BF16", "F32", "U16", "BOOL"])
SHAPES = st.lists(st.integers(0, 260), max_size=4)


@settings(max_examples=80)
@given(data=st.data())
def test_no_change_of_a_header_raises_anything_but_a_checkpoint_error(parts, whole, data):
    header = copy(parts[0])
    names = [name for name in header if name.endswith((".codes", ".scale"))]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        change = data.draw(st.sampled_from(["dtype", "shape", "name", "metadata"]))
        if change == "name":
            part = data.draw(st.sampled_from([".codes", ".scale", ".zero", ""]))
            header = renamed(header, name, name.rpartition(".")[0] + part)
        elif change == "metadata":
            field = data.draw(st.sampled_from(sorted(header["__metadata__"])))
            value = data.draw(st.none() | st.sampled_from(["1", "2", "32", "64", "pt"]))
            header = with_metadata(header, **{field: value})
        else:
            value = data.draw(DTYPES if change == "dtype" else SHAPES)
            header = with_entry(header, name, **{change: value})
    folder = whole.parent / "changed"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes((whole / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(checkpoints.with_header(header, parts[1]))
    try:
        checkpoint = Checkpoint.open(folder)
        check_scales(checkpoint.tensors)
        weights = load_weights(checkpoint)
    except CloverError:
        return
    # what is accepted has the shapes of the graph
    for name, weight in load_weights(Checkpoint.open(whole)).items():
        assert weights[name].whole().values().shape == weight.shape
