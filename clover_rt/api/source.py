"""A checkpoint's files: weights mapped, tokenizer and chat template read; no device yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from clover_rt import builtin
from clover_rt.engine import Mode, ModelFacts
from clover_rt.model.config import ModelConfig
from clover_rt.model.generation import GenerationConfig
from clover_rt.text import Template, Tokenizer
from clover_rt.weights import Checkpoint

CHAT_END = "<|im_end|>"


@dataclass(frozen=True)
class Source:
    """A checkpoint with its text side; a folder without a tokenizer takes token ids only."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    template: Template | None

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def generation(self) -> GenerationConfig:
        return self.checkpoint.generation

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that the checkpoint can run, its default first."""
        if self.config.block is None or self.checkpoint.missing_preview:
            return (Mode.AR.value,)
        return tuple(mode.value for mode in (Mode.DIFFUSION, Mode.AR, Mode.SELF_SPEC))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a response: the checkpoint's, and the end of a chat turn."""
        ids = list(self.generation.stop_ids)
        if self.tokenizer is not None and self.template is not None:
            end = self.tokenizer.id_of(CHAT_END)
            ids += [] if end is None else [end]
        return tuple(dict.fromkeys(ids))

    @property
    def facts(self) -> ModelFacts:
        """What the engine must know of the checkpoint."""
        block, tokenizer = self.config.block, self.tokenizer
        known = self.config.vocab_size
        if tokenizer is not None:
            known = min(known, tokenizer.size)
        think_end = self.generation.controls.think_end
        return ModelFacts(
            known_ids=known,
            block_size=block.block_size if block is not None else 0,
            mask_id=block.mask_token_id if block is not None else None,
            threshold=block.threshold if block is not None else 0.95,
            think_end_id=think_end if think_end >= 0 else None,
            think_open_id=tokenizer.id_of("<think>") if tokenizer is not None else None,
        )


def open_source(path: str | os.PathLike[str] | None) -> Source:
    """Open a folder, a built-in model by name, or the default one.

    Raises BadInput (CRT-1014) for a bare name that is neither, or BadCheckpoint.
    """
    checkpoint = Checkpoint.open(_find(path))
    if not (checkpoint.folder / "tokenizer.json").is_file():
        return Source(checkpoint, None, None)
    tokenizer = Tokenizer.load(checkpoint.folder)
    if checkpoint.config.block is not None:
        tokenizer.check_mask(checkpoint.config.block.mask_token_id)
    return Source(checkpoint, tokenizer, Template.load(checkpoint.folder, tokenizer))


def _find(path: str | os.PathLike[str] | None) -> Path:
    if path is None:
        return builtin.path()
    name, folder = str(path), Path(path)
    # "" is the current folder to a Path, and nobody's name for it
    if name and (folder.exists() or folder.name != name):
        return folder
    return builtin.path(name)
