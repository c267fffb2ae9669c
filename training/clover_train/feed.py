"""Batches for training and teacher-forced checks, a pure function of seed, process and step."""

from __future__ import annotations

from random import Random

from tokenizers import Tokenizer

from clover_train.layout import CHUNK, Batch, Tokens, collate, lay_out
from clover_train.mixture import KINDS, Chat, chat, draw_chat

KIND_OF = {k.name: i for i, k in enumerate(KINDS)}


def tokens(tokenizer: Tokenizer, c: Chat) -> Tokens:
    """Return the ids of a conversation; the response ends with the end token."""
    end = tokenizer.token_to_id("<|im_end|>")
    response = tokenizer.encode(c.response, add_special_tokens=False).ids
    prompt = tokenizer.encode(c.prompt, add_special_tokens=False).ids
    return Tokens(KIND_OF[c.kind], prompt, [*response, end])


def training_batch(
    tokenizer: Tokenizer, seed: str, rows: int, copies: int, drills: float = 0.0
) -> Batch:
    """Draw conversations, a share `drills` of them drills, until they fill about `rows` rows."""
    rng = Random(seed)
    mask, fill = (tokenizer.token_to_id(t) for t in ("<|mask|>", "<|endoftext|>"))
    pieces, total = [], 0
    while total < rows:
        example = tokens(tokenizer, draw_chat(rng, drills))
        if len(example.prompt) > 256:
            continue
        piece = lay_out(example, rng, mask, fill, copies)
        pieces.append(piece)
        total += len(piece.clean_ids) + CHUNK * len(piece.noisy)
    return collate(pieces)


class _Start(Random):
    """Always lays out from the prompt's end, one wholly masked copy a block."""

    def random(self) -> float:
        return 0.0


def held_out_batches(tokenizer: Tokenizer, per_kind: int, seed: int = 1) -> list[Batch]:
    """Return held-out samples, a batch for each kind, with wholly masked blocks."""
    rng = Random(seed)
    mask, fill = (tokenizer.token_to_id(t) for t in ("<|mask|>", "<|endoftext|>"))
    batches = []
    for kind in KINDS:
        pieces = []
        for _ in range(per_kind):
            example = tokens(tokenizer, chat(kind.sample(rng, held_out=True)))
            pieces.append(lay_out(example, _Start(), mask, fill, 1))
        batches.append(collate(pieces, groups=1))
    return batches
