"""Checkpoints that the safetensors package wrote are read bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from clover_rt.api import describe
from clover_rt.weights import Checkpoint, load_weights

# the package's own names of types
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def random_bits(dtype: np.dtype[Any], seed: int) -> checkpoints.Tensors:
    """Return tensors of every bit pattern but those of inf and NaN."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in checkpoints.shapes().items():
        count = int(np.prod(shape))
        values = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).copy()
        values[~np.isfinite(values.astype(np.float32))] = 1
        out[name] = values.reshape(shape)
    return out


def save(path: Path, tensors: checkpoints.Tensors) -> None:
    """Write a file by the safetensors package, metadata included."""
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt", "é": "日本"})


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16], ids=list(TYPES))
def test_tensors_of_the_safetensors_package_are_read_bit_by_bit(dtype, tmp_path):
    dtype = np.dtype(dtype)
    tensors = random_bits(dtype, seed=dtype.num)
    checkpoints.write(tmp_path)
    save(tmp_path / "model.safetensors", tensors)
    opened = Checkpoint.open(tmp_path)
    assert opened.tensors.keys() == tensors.keys()
    for name, want in tensors.items():
        view = opened.tensors[name]
        assert view.dtype == TYPES[str(dtype)]
        assert view.array.dtype == dtype
        assert view.array.tobytes() == want.tobytes()
        assert not view.array.flags.writeable
    weights = load_weights(opened)
    (piece,) = weights["layers.0.qkv"].pieces
    name = "model.layers.0.linear_attn.in_proj_qkv.weight"
    assert np.asarray(piece.codes).tobytes() == tensors[name].tobytes()


def test_files_of_mixed_types_and_an_odd_order_are_read_bit_by_bit(tmp_path):
    rng = np.random.default_rng(3)
    kinds = [np.dtype(k) for k in ("float32", "float16", ml_dtypes.bfloat16)]
    tensors = {n: t.astype(rng.choice(kinds)) for n, t in checkpoints.tensors().items()}
    names = list(tensors)
    rng.shuffle(names)
    checkpoints.write(tmp_path)
    save(tmp_path / "model.safetensors", {n: tensors[n] for n in names})
    opened = Checkpoint.open(tmp_path)
    for name, want in tensors.items():
        assert opened.tensors[name].array.tobytes() == want.tobytes()


def test_what_we_write_for_tests_the_package_reads_alike(tmp_path):
    checkpoints.write(tmp_path, checkpoints.tensors(np.dtype("float16")))
    theirs = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    opened = Checkpoint.open(tmp_path)
    assert theirs.keys() == opened.tensors.keys()
    for name, want in theirs.items():
        np.testing.assert_array_equal(opened.tensors[name].array, want)


def test_the_facts_of_a_checkpoint_are_those_of_its_files(tmp_path):
    tensors = random_bits(np.dtype(ml_dtypes.bfloat16), seed=1)
    tensors |= {"model.norm.weight": np.ones(checkpoints.HIDDEN, "<f4")}
    skipped = {"mtp.fc.weight": np.ones((2, 2), "<f4"), "mtp.norm.weight": np.ones(2, "<f4")}
    checkpoints.write(tmp_path)
    save(tmp_path / "model.safetensors", tensors | skipped)
    facts = json.loads(json.dumps(describe(tmp_path)))
    numbers = sum(t.size for t in tensors.values())
    assert facts["weights"]["parameters"] == numbers
    assert facts["weights"]["bytes"] == 2 * numbers + 2 * checkpoints.HIDDEN
    assert facts["weights"]["types"]["F32"] == {"tensors": 1, "numbers": 8, "bytes": 32}
    assert facts["weights"]["types"]["BF16"]["tensors"] == len(tensors) - 1
    assert facts["skipped"] == {"mtp.*": 2}
    size = (tmp_path / "model.safetensors").stat().st_size
    assert facts["weights"]["files"] == [{"name": "model.safetensors", "bytes": size}]
    assert facts["geometry"]["layers"] == 2
    assert facts["block"]["block_size"] == 8
    assert facts["block"]["mask_token_id"] == 18
