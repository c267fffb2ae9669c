"""generation_config.json: stop ids, response controls and defaults of sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import config
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.errors import BadCheckpoint, CloverError
from clover_rt.model.config import ModelConfig
from clover_rt.model.generation import GenerationConfig
from clover_rt.spec import Controls

GOLDEN = Path(__file__).parents[2] / "conformance" / "clover_rt_conformance" / "golden"


def parse(data: dict[str, Any], **changes: Any) -> GenerationConfig:
    return GenerationConfig.parse(data, ModelConfig.parse(config(**changes)), "generation.json")


def test_the_golden_defaults_are_those_of_its_file():
    folder = GOLDEN / "clover_tiny"
    model = ModelConfig.parse(json.loads((folder / "config.json").read_text()))
    data = json.loads((folder / "generation_config.json").read_text())
    g = GenerationConfig.parse(data, model)
    assert g.stop_ids == (319, 317, 316)
    assert g.greedy
    assert g.controls == Controls(
        frequency=0.2,
        presence=0.3,
        repetition=1.1,
        length_penalty=6.0,
        length_start=40,
        length_window=40,
        think_bias=9.0,
        think_start=10,
        think_window=20,
        think_end=315,
    )


def test_an_empty_file_has_neutral_controls_and_the_models_stops():
    g = parse({}, eos_token_id=[19, 17], pad_token_id=16)
    assert g.controls == Controls()
    assert g.controls.length_start == g.controls.length_window == 8192
    assert g.controls.think_start == g.controls.think_window == 4096
    assert g.stop_ids == (19, 17, 16)
    assert (g.greedy, g.temperature, g.top_k, g.top_p) == (True, 1.0, 0, 1.0)


def test_null_means_the_default():
    keys = (
        "presence_penalty",
        "repetition_penalty",
        "dllm_length_penalty_start",
        "dllm_think_end_token_id",
        "stop_token_ids",
        "eos_token_id",
        "pad_token_id",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
    )
    assert parse(dict.fromkeys(keys)) == parse({})


def test_stop_ids_keep_their_order_and_come_once():
    data = {"eos_token_id": [7, 5], "stop_token_ids": [9, 5, 3], "pad_token_id": 7}
    assert parse(data).stop_ids == (7, 5, 9, 3)
    assert parse(data | {"pad_token_id": 1}).stop_ids == (7, 5, 9, 3, 1)


def test_the_file_comes_before_the_configuration_id_by_id():
    assert parse({"eos_token_id": 4}, eos_token_id=19, pad_token_id=16).stop_ids == (4, 16)
    assert parse({"pad_token_id": 4}, eos_token_id=19, pad_token_id=16).stop_ids == (19, 4)


@pytest.mark.parametrize(
    ("data", "greedy"),
    [
        ({"temperature": 0.7}, True),
        ({"do_sample": False, "temperature": 0.7}, True),
        ({"do_sample": True, "temperature": 0.7}, False),
        ({"do_sample": True}, False),
        ({"do_sample": True, "temperature": 0}, True),
    ],
)
def test_sampling_is_the_default_only_where_the_file_asks_for_it(data, greedy):
    g = parse(data)
    assert g.greedy is greedy
    assert g.temperature == data.get("temperature", 1.0)


def test_minus_one_candidates_mean_no_limit():
    assert parse({"top_k": -1}).top_k == 0
    assert parse({"top_k": 20}).top_k == 20
    # there are 64 candidates: a larger limit is none
    assert parse({"top_k": 64}).top_k == 64
    assert parse({"top_k": 319}).top_k == 0


def test_windows_of_zero_or_less_are_allowed():
    controls = parse({"dllm_length_penalty_window": 0, "dllm_think_end_window": -5}).controls
    assert (controls.length_window, controls.think_window) == (0, -5)


@pytest.mark.parametrize(
    ("code", "data", "words"),
    [
        ("CRT-1122", {"temperature": "hot"}, "temperature = 'hot' is not a number"),
        ("CRT-1122", {"do_sample": 1}, "do_sample = 1 is not true or false"),
        ("CRT-1122", {"stop_token_ids": [1, "x"]}, "stop_token_ids = [1, 'x'] is not a token id"),
        ("CRT-1122", {"pad_token_id": [1, 2]}, "pad_token_id = [1, 2] is not one token id"),
        ("CRT-1122", {"dllm_length_penalty_start": 1.5}, "start = 1.5 is not a whole number"),
        ("CRT-1123", {"top_p": 0}, "top_p = 0 is out of range"),
        ("CRT-1123", {"top_p": 1.01}, "top_p = 1.01 is out of range"),
        ("CRT-1123", {"top_k": -2}, "top_k = -2 is out of range"),
        ("CRT-1123", {"temperature": -0.5}, "temperature = -0.5 is out of range"),
        ("CRT-1123", {"repetition_penalty": 0}, "repetition_penalty = 0 is out of range"),
        ("CRT-1123", {"frequency_penalty": float("inf")}, "frequency_penalty = inf"),
        ("CRT-1123", {"eos_token_id": 20}, "eos_token_id = 20 is out of range"),
        ("CRT-1123", {"dllm_think_end_token_id": 20}, "dllm_think_end_token_id = 20"),
        ("CRT-1120", {"top_k": -2, "temperature": "hot"}, "2 problems"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(code, data, words):
    with pytest.raises(BadCheckpoint) as caught:
        parse(data)
    assert words in caught.value.evidence
    assert caught.value.evidence.startswith("generation.json: ")
    assert caught.value.code == code


KEYS = ("eos_token_id", "stop_token_ids", "top_k", "top_p", "dllm_think_end_token_id")
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.integers())


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_no_values_raise_anything_but_a_checkpoint_error(data):
    try:
        parse(data)
    except CloverError:
        return
