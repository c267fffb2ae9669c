"""GenerationConfig: how a checkpoint wants to be decoded, from generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clover_rt.model.config import ModelConfig
from clover_rt.model.fields import MAX_INT, TYPE, Fields
from clover_rt.spec import Controls

MOST_CANDIDATES = 64
"""Candidates that a pass returns of a row: what sampling sees."""


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Defaults of decoding; every one may be overridden by a request.

    controls     response controls. `controls.stops` is empty: a request fills it from stop_ids,
                 because a chat template may add an id and ignored stops get no length bias
    stop_ids     eos ids, stop_token_ids and the pad id, in this order, each once
    greedy       argmax is the default (do_sample false or absent, or temperature 0)
    temperature  of sampling, where it is asked for; above 0 unless greedy
    top_k        candidates of sampling, at most 64; 0: all 64, as for a larger number in the file
    top_p        mass of sampling's candidates, in (0, 1]
    """

    controls: Controls
    stop_ids: tuple[int, ...]
    greedy: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @staticmethod
    def parse(
        data: Mapping[str, Any], config: ModelConfig, source: str = "generation_config.json"
    ) -> GenerationConfig:
        """Return the defaults in a generation_config.json object; {} where there is no file.

        A null counts as absent. eos and pad ids that the file lacks come from `config`. Raises one
        BadCheckpoint that names every field of a wrong type or out of range.
        """
        f = Fields(source, data)
        controls = _controls(f, config.vocab_size)
        eos = f.ids("eos_token_id", config.vocab_size)
        stops = f.ids("stop_token_ids", config.vocab_size)
        pads = f.ids("pad_token_id", config.vocab_size)
        if pads is not None and len(pads) > 1:
            text = f"pad_token_id = {list(pads)} is not one token id"
            f.problem(TYPE, text, f"correct the value in {source}")
        if eos is None:
            eos = config.eos_token_ids
        if pads is None:
            pads = () if config.pad_token_id is None else (config.pad_token_id,)
        do_sample = f.flag("do_sample", False)
        temperature = f.number("temperature", 1.0, low=0.0)
        # -1 means no limit in files of other engines, and past all candidates there is none
        top_k = max(f.integer("top_k", 0, low=-1), 0)
        top_k = top_k if top_k <= MOST_CANDIDATES else 0
        top_p = f.number("top_p", 1.0, above=0.0, high=1.0)
        f.finish("the checkpoint's generation defaults cannot be used")
        return GenerationConfig(
            controls=controls,
            stop_ids=tuple(dict.fromkeys((*eos, *(stops or ()), *pads))),
            greedy=not do_sample or temperature == 0,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )


def _controls(f: Fields, vocab: int) -> Controls:
    def whole(key: str, default: int) -> int:
        return f.integer(key, default, low=-MAX_INT)

    return Controls(
        frequency=f.number("frequency_penalty", 0.0),
        presence=f.number("presence_penalty", 0.0),
        repetition=f.number("repetition_penalty", 1.0, above=0.0),
        length_penalty=f.number("dllm_length_penalty", 0.0),
        length_start=whole("dllm_length_penalty_start", 8192),
        length_window=whole("dllm_length_penalty_window", 8192),
        think_bias=f.number("dllm_think_end_bias", 0.0),
        think_start=whole("dllm_think_end_start", 4096),
        think_window=whole("dllm_think_end_window", 4096),
        think_end=_think_end(f, vocab),
    )


def _think_end(f: Fields, vocab: int) -> int:
    """Return the id of `</think>`, or -1 where the file names none."""
    key = "dllm_think_end_token_id"
    if f.raw(key) is None:
        return -1
    return f.integer(key, low=0, high=vocab - 1)
