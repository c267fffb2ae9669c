"""A trained model's answers: texts, token counts, passes and rounds of 67 chat prompts.

They were made by a float64 program of its own; prompts.json holds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import clover_rt
from tests.golden import PROTO

PROMPTS = json.loads((Path(__file__).parent / "prompts.json").read_text())


@pytest.fixture(scope="module")
def model() -> Iterator[clover_rt.Model]:
    with clover_rt.load(PROTO, context=512) as loaded:
        yield loaded


def answer(model: clover_rt.Model, prompt: str, **options: object) -> clover_rt.EndEvent:
    events = list(model.generate(prompt, think=False, max_new_tokens=160, **options))
    end = events[-1]
    assert isinstance(end, clover_rt.EndEvent)
    streamed = "".join(e.text for e in events if isinstance(e, clover_rt.TextEvent))
    assert streamed == end.text
    return end


def named(case: dict[str, object]) -> str:
    return f"{case['task']}:{case['prompt']}"


@pytest.mark.parametrize("case", PROMPTS, ids=named)
def test_ar_and_self_spec_write_the_recorded_text(model: clover_rt.Model, case: dict) -> None:
    ar = answer(model, case["prompt"], mode="ar")
    assert (ar.text, len(ar.tokens)) == (case["ar"], case["ar_tokens"])
    spec = answer(model, case["prompt"], mode="self-spec")
    assert spec.tokens == ar.tokens
    assert spec.stats["rounds"] == case["rounds"]


@pytest.mark.parametrize("case", PROMPTS, ids=named)
def test_diffusion_writes_the_recorded_text_in_the_recorded_passes(
    model: clover_rt.Model, case: dict
) -> None:
    end = answer(model, case["prompt"], mode="diffusion")
    assert (end.text, len(end.tokens)) == (case["diffusion"], case["diffusion_tokens"])
    assert (end.stats["passes"], end.stats["blocks"]) == (case["passes"], case["blocks"])
