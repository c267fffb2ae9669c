"""What the engine must know of a checkpoint, and the engine's own settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The checkpoint's numbers that decoding needs.

    known_ids      ids that the tokenizer knows; ids from here on are never emitted
    block_size     the trained block; 0 for a causal twin, which has no preview
    mask_id        the mask token; None for a causal twin
    threshold      the checkpoint's confidence threshold
    think_end_id   `</think>`, None where the vocabulary has none
    think_open_id  `<think>`, None where it is not known
    """

    known_ids: int
    block_size: int = 0
    mask_id: int | None = None
    threshold: float = 0.95
    think_end_id: int | None = None
    think_open_id: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine makes passes; the tokens do not depend on it on a row-invariant device.

    prefill_chunk  rows of one prefill pass at most; 0: as many as a pass can have
    fuse_commit    commit a block and preview the next in one pass, where the runner accepts it
    """

    prefill_chunk: int = 512
    fuse_commit: bool = True
