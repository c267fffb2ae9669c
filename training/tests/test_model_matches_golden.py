"""The torch model gives the golden checkpoint's logits, though it shares no code with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from clover_train import checkpoint
from clover_train.layout import CHUNK, Piece, collate

GOLDEN = Path(__file__).parents[2] / "conformance/clover_rt_conformance/golden"
ARRAYS = np.load(GOLDEN / "clover_tiny.npz")
PROMPTS = json.loads((GOLDEN / "clover_tiny.json").read_text())["prompts"]
MASK = 318


def batch_of(ids: list[int], block: list[int], width: int):
    """Lay out a prompt that ends at a chunk's end, and one block over its state."""
    pad = -len(ids) % CHUNK
    shown = block + [0] * (CHUNK - len(block))
    piece = Piece(
        prompt_chunks=(pad + len(ids)) // CHUNK,
        blocks=1,
        clean_ids=[0] * pad + ids + [5] * CHUNK,
        clean_positions=[0] * pad + list(range(len(ids) + CHUNK)),
        pad=pad,
        causal=[(pad + i, 0) for i in range(len(ids))],
        noisy=[(0, shown, [i < width for i in range(CHUNK)], width)],
        kind=0,
    )
    return collate([piece], groups=1)


@pytest.fixture(scope="module")
def model():
    return checkpoint.read(GOLDEN / "clover_tiny").double()


@pytest.mark.parametrize("name", sorted(PROMPTS))
@pytest.mark.parametrize("view", ["masks", "half", "width8"])
def test_causal_and_preview_logits_are_the_golden_ones(model, name, view):
    key = f"{name}.preview_{view}"
    wanted = ARRAYS[f"{key}.logits"]
    block = ARRAYS[f"{key}.block"].tolist()
    torch.set_default_dtype(torch.float64)
    try:
        batch = batch_of(PROMPTS[name], block, len(block))
        for group in batch.groups:
            group.mask = group.mask.double()
        with torch.no_grad():
            h, _ = model(batch)
            causal = model.logits(h[batch.causal_rows]).numpy()
            preview = model.logits(h[batch.clean * CHUNK :][: len(block)]).numpy()
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(causal, ARRAYS[f"{name}.causal_logits"], atol=1e-5)
    np.testing.assert_allclose(preview, wanted, atol=1e-5)
