"""From a prompt and options to a checked request, before anything is allocated."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from clover_rt.api.choices import choice
from clover_rt.api.options import MAX_NEW_TOKENS, Options, filled
from clover_rt.api.source import Source
from clover_rt.engine import Accept, Limits, Mode, Request, Sampling, validate
from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.spec import Controls
from clover_rt.text import Stream, Tokenizer

TOO_LONG = ("CRT-1035", "CRT-1036")
"""Codes of a prompt and of a length for which there is no room."""

Prompt = str | Sequence[Mapping[str, object]] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request, and the strings that end its text."""

    request: Request
    stop: tuple[str, ...] = ()


def order(source: Source, limits: Limits, prompt: Prompt, **options: Unpack[Options]) -> Order:
    """Return a request; what it asks is described at `Model.generate`.

    Raises BadInput, or BadCheckpoint where the checkpoint cannot run the mode.
    """
    asked = filled(options)
    mode = choice("mode", asked["mode"] or source.modes[0], Mode)
    _check_mode(source, mode)
    accept = asked["accept"]
    ids = encode(source, prompt, raw=asked["raw"], system=asked["system"], think=asked["think"])
    length = asked["max_new_tokens"]
    if "max_new_tokens" not in options:
        # the default gives way to the context; what was asked for does not
        length = min(MAX_NEW_TOKENS, max(limits.context - len(ids), 1))
    request = Request(
        prompt=ids,
        mode=mode,
        max_tokens=length,
        threshold=asked["threshold"],
        block_size=asked["block_size"],
        early_end=asked["early_end"],
        accept=None if accept is None else choice("accept", accept, Accept),
        draft_width=asked["draft_width"],
        sampling=_sampling(source, mode, asked),
        stops=source.stop_ids,
        ignore_eos=asked["ignore_eos"],
        controls=source.generation.controls if asked["controls"] else Controls(),
    )
    try:
        validate(request, source.facts, limits)
    except BadInput as error:
        if error.code not in TOO_LONG:
            raise
        fix = _room(source, limits, len(ids))
        raise BadInput(error.what, error.evidence, fix, error.code) from error
    stop: tuple[str, ...] = asked["stop"]
    if stop:
        _check_stop(source, stop)
    return Order(request, stop)


def encode(
    source: Source,
    prompt: Prompt,
    *,
    raw: bool = False,
    system: str | None = None,
    think: bool | None = None,
) -> tuple[int, ...]:
    """Return the ids of a prompt: text or messages through the chat template, or ids as given.

    raw takes text as it is, control tokens included, without the template.
    """
    if not isinstance(prompt, str):
        ids = token_ids(prompt)
        if ids:
            _refuse_chat_options(system, think)
            return ids
    tokenizer = need_tokenizer(source)
    if raw:
        if not isinstance(prompt, str):
            raise BadInput(
                what="raw was set for messages",
                evidence="raw takes one string",
                fix="give one string, or leave raw out",
                code="CRT-1022",
            )
        return tuple(tokenizer.encode_scaffold(prompt))
    if source.template is None:
        raise BadInput(
            what="a chat prompt was given",
            evidence=f"{source.checkpoint.folder} has no chat template",
            fix="use raw=True (--raw), or add chat_template.jinja",
            code="CRT-1016",
        )
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    # what is not a message is refused there, with its place
    return tuple(source.template.encode(messages, system=system, think=think))  # type: ignore[arg-type]


def token_ids(prompt: object) -> tuple[int, ...]:
    """Return a prompt's token ids, numpy's integers too; () where its first item is no id.

    Raises BadInput: CRT-1055 it is no list, CRT-1056 a later item is no id.
    """
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
        raise BadInput(
            what="something that is no prompt was given",
            evidence=f"it is a {type(prompt).__name__}",
            fix="give a string, a list of messages, or a list of token ids",
            code="CRT-1055",
        )
    ids: list[int] = []
    for place, item in enumerate(prompt):
        # True and False have an index, and mean no id
        if hasattr(item, "__index__") and not isinstance(item, bool):
            ids.append(operator.index(item))
        elif ids:
            raise BadInput(
                what="a prompt of token ids was given",
                evidence=f"prompt[{place}] is a {type(item).__name__}: {item!r}",
                fix="give whole numbers only, or a list of messages",
                code="CRT-1056",
            )
        else:
            return ()
    return tuple(ids)


def need_tokenizer(source: Source) -> Tokenizer:
    """Return the tokenizer; raises BadCheckpoint (CRT-1182) where the folder has none."""
    return source.tokenizer or Tokenizer.load(source.checkpoint.folder)


def _refuse_chat_options(system: str | None, think: bool | None) -> None:
    if system is not None or think is not None:
        raise BadInput(
            what="a prompt of token ids was given with chat options",
            evidence="system and think belong to the chat template",
            fix="leave them out, or give text",
            code="CRT-1015",
        )


def _sampling(source: Source, mode: Mode, asked: Mapping[str, Any]) -> Sampling | None:
    """Return how to sample, None for argmax; asking for top-k or top-p asks for sampling."""
    defaults = source.generation
    temperature, top_k, top_p = asked["temperature"], asked["top_k"], asked["top_p"]
    seed: int | None = asked["seed"]
    if temperature is not None and not temperature >= 0:
        raise BadInput(
            what=f"temperature={temperature} was asked for",
            evidence="a temperature is 0 (greedy) or above",
            fix="use a value such as 0.7, or 0 for greedy decoding",
            code="CRT-1021",
        )
    wanted = top_k is not None or top_p is not None
    greedy = temperature == 0 or (temperature is None and defaults.greedy and not wanted)
    if greedy or (mode is Mode.SELF_SPEC and temperature is None and not wanted):
        if seed is not None:
            raise BadInput(
                what=f"seed={seed} was given",
                evidence="it has no effect: nothing is sampled in greedy decoding",
                fix="leave seed out, or sample with temperature, top_k or top_p",
                code="CRT-1067",
            )
        return None
    return Sampling(
        temperature=defaults.temperature if temperature is None else temperature,
        top_k=defaults.top_k if top_k is None else top_k,
        top_p=defaults.top_p if top_p is None else top_p,
        seed=seed or 0,
    )


def _room(source: Source, limits: Limits, prompt: int) -> str:
    """Return what to do about a prompt or a length that the context cannot hold."""
    room, most = limits.context - prompt, source.config.context
    fix = f"ask for 1 to {room} tokens" if room > 0 else "shorten the prompt"
    if limits.context < most:
        return f"{fix}, or raise --context (context= in Python), {most} at most for this model"
    return fix if room > 0 else f"{fix}: the model takes {most} tokens, the answer included"


def _check_stop(source: Source, stop: tuple[str, ...]) -> None:
    if source.tokenizer is None:
        raise BadInput(
            what=f"the stop string {stop[0]!r} was given",
            evidence=f"{source.checkpoint.folder} has no tokenizer.json, so there is no text",
            fix="leave stop out, or copy tokenizer.json into the folder",
            code="CRT-1057",
        )
    Stream(source.tokenizer, stop)


def _check_mode(source: Source, mode: Mode) -> None:
    if mode.value in source.modes:
        return
    missing = source.checkpoint.missing_preview
    why = f"{source.config.model_type} has no block settings"
    if missing:
        why = f"{len(missing)} preview tensors are missing, such as {missing[0]}"
    raise BadCheckpoint(
        what=f"mode {mode.value} was asked of {source.checkpoint.folder}",
        evidence=why,
        fix="use mode ar, or a checkpoint with the block operator's tensors",
        code="CRT-1170",
    )
