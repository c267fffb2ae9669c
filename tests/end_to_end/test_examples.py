"""The examples of every built-in model get the right answer, which their file holds."""

from __future__ import annotations

import pytest

import clover_rt
from clover_rt import builtin


@pytest.mark.parametrize("name", builtin.NAMES)
def test_an_example_is_answered_as_its_file_says(name):
    with clover_rt.load(name, context=512) as model:
        for example in builtin.examples(name):
            *_, end = model.generate(example["prompt"])
            assert end.finish_reason == "stop", example["prompt"]
            assert end.text == example.get("answer", end.text), example["prompt"]
