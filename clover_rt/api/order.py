"""From a prompt and options to a checked request, before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clover_rt.api.choices import choice
from clover_rt.api.source import Source
from clover_rt.engine import Accept, Limits, Mode, Request, Sampling, validate
from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.spec import Controls
from clover_rt.text import Stream, Tokenizer

Prompt = str | Sequence[Mapping[str, object]] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request, and the strings that end its text."""

    request: Request
    stop: tuple[str, ...] = ()


def order(
    source: Source,
    limits: Limits,
    prompt: Prompt,
    *,
    mode: str | None = None,
    raw: bool = False,
    system: str | None = None,
    think: bool | None = None,
    max_new_tokens: int | None = 256,
    threshold: float | None = None,
    block_size: int | None = None,
    accept: str | None = None,
    draft_width: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    controls: bool = True,
    ignore_eos: bool = False,
    early_end: bool | None = None,
) -> Order:
    """Return a request; what it asks is described at `Model.generate`.

    Raises BadInput, or BadCheckpoint where the checkpoint cannot run the mode.
    """
    chosen = choice("mode", mode or source.modes[0], Mode)
    _check_mode(source, chosen)
    ids = encode(source, prompt, raw=raw, system=system, think=think)
    if max_new_tokens is not None:
        max_new_tokens = min(max_new_tokens, max(limits.context - len(ids), 1))
    request = Request(
        prompt=ids,
        mode=chosen,
        max_tokens=max_new_tokens,
        threshold=threshold,
        block_size=block_size,
        early_end=early_end,
        accept=None if accept is None else choice("accept", accept, Accept),
        draft_width=draft_width,
        sampling=_sampling(source, chosen, temperature, top_k, top_p, seed),
        stops=source.stop_ids,
        ignore_eos=ignore_eos,
        controls=source.generation.controls if controls else Controls(),
    )
    validate(request, source.facts, limits)
    if stop:
        Stream(need_tokenizer(source), stop)
    return Order(request, tuple(stop))


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
        ids = tuple(i for i in prompt if isinstance(i, int) and not isinstance(i, bool))
        if ids and len(ids) == len(prompt):
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


def _sampling(
    source: Source,
    mode: Mode,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> Sampling | None:
    """Return how to sample, None for argmax; asking for top-k or top-p asks for sampling."""
    defaults = source.generation
    asked = top_k is not None or top_p is not None
    greedy = temperature == 0 or (temperature is None and defaults.greedy and not asked)
    if greedy or (mode is Mode.SELF_SPEC and temperature is None and not asked):
        return None
    return Sampling(
        temperature=defaults.temperature if temperature is None else temperature,
        top_k=defaults.top_k if top_k is None else top_k,
        top_p=defaults.top_p if top_p is None else top_p,
        seed=seed,
    )


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
