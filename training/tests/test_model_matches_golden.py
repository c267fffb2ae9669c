"""The torch model gives the golden checkpoint's logits, though it shares no code with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from clover_train import checkpoint
from clover_train.parity import logits_of

GOLDEN = Path(__file__).parents[2] / "conformance/clover_rt_conformance/golden"
ARRAYS = np.load(GOLDEN / "clover_tiny.npz")
PROMPTS = json.loads((GOLDEN / "clover_tiny.json").read_text())["prompts"]


@pytest.fixture(scope="module")
def model():
    return checkpoint.read(GOLDEN / "clover_tiny").double()


@pytest.mark.parametrize("name", sorted(PROMPTS))
@pytest.mark.parametrize("view", ["masks", "half", "width8"])
def test_causal_and_preview_logits_are_the_golden_ones(model, name, view):
    key = f"{name}.preview_{view}"
    block = ARRAYS[f"{key}.block"].tolist()
    causal, preview = logits_of(model, PROMPTS[name], block)
    np.testing.assert_allclose(causal, ARRAYS[f"{name}.causal_logits"], atol=1e-5)
    np.testing.assert_allclose(preview, ARRAYS[f"{key}.logits"], atol=1e-5)
