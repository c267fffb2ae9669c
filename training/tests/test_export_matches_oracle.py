"""An exported checkpoint gives the training model's logits in the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clover_train import checkpoint, layout, quant, vocabulary
from clover_train.config import Config
from clover_train.feed import training_batch
from clover_train.layout import CHUNK
from clover_train.model import Model
from clover_train.train import export
from oracle import GdnState, Oracle


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary.build()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "q4"])
def exported(request, tokenizer, tmp_path_factory):
    """Return (model in float64 with the stored values, oracle)."""
    folder = tmp_path_factory.mktemp("random")
    torch.manual_seed(3)
    quant.Rounding.is_on = request.param
    try:
        export(Model(Config()), tokenizer, folder)
    finally:
        quant.Rounding.is_on = False
    return checkpoint.read(folder).double(), Oracle(folder)


def in_double(model: Model, batch: layout.Batch) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        for group in batch.groups:
            group.mask = group.mask.double()
        with torch.no_grad():
            return model.logits(model(batch)[0])
    finally:
        torch.set_default_dtype(torch.float32)


def test_rows_of_a_training_batch_are_what_the_oracle_computes(exported, tokenizer):
    model, oracle = exported
    batch = training_batch(tokenizer, "any", 1500, 2)
    logits = in_double(model, batch)
    assert set(batch.width.tolist()) == {CHUNK // 2, CHUNK}
    for s in range(len(batch.scan)):
        chunks = batch.scan[s][batch.scan[s] < batch.clean]
        rows = (chunks[:, None] * CHUNK + torch.arange(CHUNK)).flatten()
        rows = rows[batch.valid[rows]]
        ids = batch.ids[rows].tolist()
        causal = oracle.forward(ids, 0, oracle.empty_state(), oracle.empty_kv())
        np.testing.assert_allclose(logits[rows].numpy(), causal.logits, atol=1e-5)
        for noisy in (batch.parent >= chunks[0]).logical_and(batch.parent <= chunks[-1]).nonzero():
            start = (batch.clean + int(noisy)) * CHUNK
            width = int(batch.width[noisy])
            position = int(batch.positions[start])
            before = oracle.forward(ids[:position], 0, oracle.empty_state(), oracle.empty_kv())
            state: dict[int, GdnState] = {i: a[-1] for i, a in before.after.items()}
            block = batch.ids[start : start + width].tolist()
            preview = oracle.forward(block, position, state, before.kv, preview=True)
            got = logits[start : start + width].numpy()
            np.testing.assert_allclose(got, preview.logits, atol=1e-5)


def test_a_rounded_checkpoint_is_its_own_q4(exported):
    from clover_rt.spec import encode_q4

    model, _ = exported
    for module in model.modules():
        if isinstance(module, (quant.Linear, quant.Stack)):
            w = module.weight.detach().float()
            ours = quant.round_q4(w).numpy()
            theirs = encode_q4(w.numpy(), quant.GROUP).values(np.float32)
            np.testing.assert_array_equal(ours, theirs)
