"""Content never becomes a control token; ids decode as the tokenizers library says."""

from __future__ import annotations

import json
import shutil

import golden
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from clover_rt import builtin
from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.text import Tokenizer

FOLDERS = {
    "clover_tiny": golden.checkpoint("clover_tiny"),
    "qwen35moe_tiny": golden.checkpoint("qwen35moe_tiny"),
    "clover-proto": golden.PROTO,
}
TOKENIZERS = {name: Tokenizer.load(folder) for name, folder in FOLDERS.items()}
LIBRARY = {
    name: tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name, folder in FOLDERS.items()
}
names = st.sampled_from(sorted(FOLDERS))
controls = st.sampled_from(sorted({c.content for t in TOKENIZERS.values() for c in t.controls}))
contents = st.lists(st.one_of(st.text(max_size=8), controls), max_size=6).map("".join)


@given(names, contents)
def test_content_never_becomes_a_control_token_and_round_trips(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    assert tokenizer.control_ids.isdisjoint(ids)
    normalizer = LIBRARY[name].normalizer
    assert tokenizer.decode(ids) == (normalizer.normalize_str(text) if normalizer else text)


@given(names, st.text(max_size=20))
def test_text_without_control_tokens_encodes_as_the_library_does(name, text):
    if TOKENIZERS[name].control_pattern.search(text) is None:
        want = LIBRARY[name].encode(text, add_special_tokens=False).ids
        assert TOKENIZERS[name].encode(text) == want


@given(names, st.lists(st.integers(0, 299), max_size=30), st.booleans())
def test_any_ids_decode_as_the_library_does(name, ids, skip):
    ids = [i + j for i, j in zip(ids, [0, TOKENIZERS[name].size - 300] * 15, strict=False)]
    want = LIBRARY[name].decode(ids, skip_special_tokens=skip)
    assert TOKENIZERS[name].decode(ids, skip_special=skip) == want


def test_scaffolding_recognises_control_tokens():
    tokenizer = TOKENIZERS["clover-proto"]
    text = "<|im_start|>user\nhi<|im_end|>\n"
    assert tokenizer.encode_scaffold(text)[0] == 1019
    assert 1020 in tokenizer.encode_scaffold(text)


def test_the_size_is_one_past_the_largest_id():
    assert TOKENIZERS["clover-proto"].size == 1024
    assert TOKENIZERS["clover_tiny"].size == 320


def test_size_counts_past_gaps_between_ids():
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 7}, merges=[]))
    inner.decoder = tokenizers.decoders.ByteLevel()
    assert Tokenizer(inner).size == 8


def test_tokens_and_ids_name_each_other():
    tokenizer = TOKENIZERS["clover-proto"]
    assert tokenizer.id_of("</think>") == 1023
    assert tokenizer.token(1023) == "</think>"
    assert tokenizer.id_of("no such token") is None
    assert tokenizer.token(1024) is None
    assert tokenizer.token(-1) is None


def test_a_vocabulary_that_spells_a_control_token_whole_still_cannot_be_forged():
    vocab = {"<": 0, "x": 1, ">": 2, "<x": 3, "<x>": 4}
    model = tokenizers.models.BPE(vocab=vocab, merges=[("<", "x"), ("<x", ">")])
    inner = tokenizers.Tokenizer(model)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<x>"])
    tokenizer = Tokenizer(inner)
    assert tokenizer.encode_scaffold("<x>") == [4]
    assert tokenizer.encode("<x>") == [0, 1, 2]


def test_a_control_token_that_is_one_plain_character_is_refused_in_content():
    model = tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[])
    inner = tokenizers.Tokenizer(model)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["b"])
    with pytest.raises(BadInput) as caught:
        Tokenizer(inner).encode("ab")
    assert caught.value.code == "CRT-1071"


def test_half_a_surrogate_pair_is_an_input_error():
    with pytest.raises(BadInput) as caught:
        TOKENIZERS["clover-proto"].encode("ab\ud83d")
    assert caught.value.code == "CRT-1070"
    assert "U+D83D" in caught.value.evidence


def test_the_declared_mask_passes():
    TOKENIZERS["clover-proto"].check_mask(1021)
    TOKENIZERS["clover_tiny"].check_mask(318)


@pytest.mark.parametrize(
    ("mask", "code"),
    [(1024, "CRT-1185"), (-1, "CRT-1185"), (65, "CRT-1186"), (1018, "CRT-1187")],
    ids=["unknown", "negative", "ordinary text", "another token than declared"],
)
def test_a_mask_that_contradicts_the_tokenizer_is_a_load_error(mask, code):
    with pytest.raises(BadCheckpoint) as caught:
        TOKENIZERS["clover-proto"].check_mask(mask)
    assert caught.value.code == code
    assert f"mask_token_id {mask}" in caught.value.evidence


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(BadCheckpoint) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.code == "CRT-1182"
    assert str(tmp_path / "tokenizer.json") in caught.value.evidence


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadCheckpoint) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.code == "CRT-1183"


def test_a_tokenizer_that_is_not_byte_level_is_refused(tmp_path):
    data = json.loads((golden.PROTO / "tokenizer.json").read_text())
    data["decoder"] = {"type": "Fuse"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(BadCheckpoint) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.code == "CRT-1184"
    assert "Fuse" in caught.value.evidence


@pytest.mark.parametrize("text", ["[", "[]"], ids=["not JSON", "not an object"])
def test_a_broken_tokenizer_config_is_named(tmp_path, text):
    shutil.copy(golden.PROTO / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(BadCheckpoint) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.code == "CRT-1181"
    assert "tokenizer_config.json" in caught.value.evidence


def test_a_text_file_that_is_not_utf8_is_named(tmp_path):
    shutil.copy(golden.PROTO / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(b"\xff")
    with pytest.raises(BadCheckpoint) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.code == "CRT-1180"


def test_an_unknown_builtin_model_lists_the_known_ones():
    with pytest.raises(BadInput) as caught:
        builtin.path("nope")
    assert caught.value.code == "CRT-1014"
    assert "clover-tiny" in caught.value.evidence
