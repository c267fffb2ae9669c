"""Record logits of a checkpoint in float64, for the runtime's tests.

python -m clover_train.parity CHECKPOINT ../tests/end_to_end/tiny_logits.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import numpy as np
import torch

from clover_train import checkpoint, vocabulary
from clover_train.feed import tokens
from clover_train.layout import CHUNK, Batch, Piece, collate
from clover_train.mixture import KINDS, chat
from clover_train.model import Model

TOP = 32
KEPT = ("sort", "json", "python")


def batch_of(ids: list[int], block: list[int]) -> Batch:
    """Lay out a prompt that ends at a chunk's end, and one block over its state."""
    pad = -len(ids) % CHUNK
    width = len(block)
    shown = block + [0] * (CHUNK - width)
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


def logits_of(model: Model, ids: list[int], block: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 logits of a prompt's rows (causal) and of a block's rows (preview)."""
    torch.set_default_dtype(torch.float64)
    try:
        batch = batch_of(ids, block)
        for group in batch.groups:
            group.mask = group.mask.double()
        with torch.no_grad():
            h, _ = model(batch)
            causal = model.logits(h[batch.causal_rows]).numpy()
            preview = model.logits(h[batch.clean * CHUNK :][: len(block)]).numpy()
    finally:
        torch.set_default_dtype(torch.float32)
    return causal, preview


def top(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Return the likeliest ids of each row, their logits, and log-sum-exp."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
    most = logits.max(1)
    return {
        "ids": ids.astype(np.int32),
        "logits": np.take_along_axis(logits, ids, 1),
        "lse": most + np.log(np.exp(logits - most[:, None]).sum(1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    a = parser.parse_args()
    model = checkpoint.read(a.checkpoint).double()
    tokenizer = vocabulary.build()
    mask = tokenizer.token_to_id("<|mask|>")
    out = {}
    for kind in KINDS:
        if kind.name not in KEPT:
            continue
        rng = Random(f"parity-{kind.name}")
        example = tokens(tokenizer, chat(kind.sample(rng, held_out=True)))
        blocks = {"masks": [mask] * CHUNK}
        truth = [*example.response, *[mask] * CHUNK][:CHUNK]
        blocks["half"] = [t if rng.random() < 0.5 else mask for t in truth]
        blocks["draft"] = [example.response[0], *[mask] * (CHUNK // 2 - 1)]
        out[f"{kind.name}/prompt"] = np.array(example.prompt, np.int32)
        for name, block in blocks.items():
            causal, preview = logits_of(model, example.prompt, block)
            out[f"{kind.name}/{name}/block"] = np.array(block, np.int32)
            out |= {f"{kind.name}/{name}/{k}": v for k, v in top(preview).items()}
        out |= {f"{kind.name}/causal/{k}": v for k, v in top(causal).items()}
    np.savez_compressed(a.out, **out)


if __name__ == "__main__":
    main()
