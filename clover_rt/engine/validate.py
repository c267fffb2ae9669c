"""Checks of a request against the model's limits, before any work starts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from clover_rt.engine.facts import ModelFacts
from clover_rt.engine.request import Accept, Mode, Plan, Request
from clover_rt.engine.runner import Limits
from clover_rt.engine.sampling import CANDIDATES
from clover_rt.engine.think import is_prompt_closed
from clover_rt.errors import BadInput
from clover_rt.spec import TableClass
from clover_rt.spec.step import MAX_STOPS

LONGEST_BLOCK = 256
WIDEST_DEFAULT_DRAFT = 16


def validate(request: Request, facts: ModelFacts, limits: Limits) -> Plan:
    """Return the request with defaults filled in, or raise BadInput naming field and value."""
    _check_fields(request)
    _check_prompt(request, facts, limits)
    _check_mode(request, facts, limits)
    max_tokens = _max_tokens(request, limits)
    stops = () if request.ignore_eos else tuple(dict.fromkeys(request.stops))
    _check_ids("stops", stops, limits.vocab_size)
    if len(stops) > MAX_STOPS:
        raise BadInput(
            what=f"a request with {len(stops)} stop ids was made",
            evidence=f"the step table holds {MAX_STOPS} a sequence",
            fix="ask for fewer stop ids",
            code="CRT-1020",
        )
    _check_sampling(request)
    controls = replace(request.controls, stops=stops)
    _check_controls(request, limits)
    _check_ids("banned", tuple(request.banned), limits.vocab_size)
    if suppressed_ids(request, facts, limits).all():
        raise BadInput(
            what="a request that bans every token id was made",
            evidence=f"{len(request.banned)} ids are banned of {facts.known_ids} known ones",
            fix="ban fewer ids",
            code="CRT-1048",
        )
    return Plan(
        request=request,
        max_tokens=max_tokens,
        threshold=_threshold(request, facts),
        block_size=_block_size(request, facts, limits),
        early_end=request.early_end is not False,
        accept=request.accept or Accept.EXACT,
        draft_width=_draft_width(request, facts, limits),
        stops=frozenset(stops),
        controls=controls,
        closed=is_prompt_closed(request.prompt, facts.think_open_id, _think_end(request, facts)),
        top=1 if request.sampling is None else min(CANDIDATES, limits.vocab_size),
    )


def suppressed_ids(request: Request, facts: ModelFacts, limits: Limits) -> npt.NDArray[np.bool_]:
    """Return the ids that are never picked, bool [vocab]: mask, unknown and banned ones."""
    out = np.zeros(limits.vocab_size, np.bool_)
    out[facts.known_ids :] = True
    if facts.mask_id is not None:
        out[facts.mask_id] = True
    out[list(request.banned)] = True
    return out


def _think_end(request: Request, facts: ModelFacts) -> int | None:
    return request.controls.think_end if request.controls.think_end >= 0 else facts.think_end_id


def _check_fields(request: Request) -> None:
    """A field that has no effect in the chosen mode is an error."""
    only = {
        "threshold": Mode.DIFFUSION,
        "block_size": Mode.DIFFUSION,
        "early_end": Mode.DIFFUSION,
        "accept": Mode.SELF_SPEC,
        "draft_width": Mode.SELF_SPEC,
        "drafter": Mode.SELF_SPEC,
    }
    for name, mode in only.items():
        value = getattr(request, name)
        if value is not None and request.mode is not mode:
            raise BadInput(
                what=f"{name} was set in mode {request.mode.value}",
                evidence=f"{name}={value!r} has an effect in mode {mode.value} only",
                fix=f"leave {name} out, or choose mode {mode.value}",
                code="CRT-1030",
            )
    if request.mode is Mode.SELF_SPEC and request.sampling is not None:
        raise BadInput(
            what="sampling was asked for in mode self-spec",
            evidence=f"{request.sampling}; self-spec verifies greedy picks only",
            fix="use greedy decoding, or mode ar or diffusion",
            code="CRT-1031",
        )


def _check_prompt(request: Request, facts: ModelFacts, limits: Limits) -> None:
    prompt = request.prompt
    if not prompt:
        raise BadInput(
            what="a generation from an empty prompt was asked for",
            evidence="the prompt has 0 token ids",
            fix="give at least one token",
            code="CRT-1032",
        )
    _check_ids("prompt", prompt, min(facts.known_ids, limits.vocab_size))
    if facts.mask_id is not None and facts.mask_id in prompt:
        raise BadInput(
            what="a prompt with the mask token was given",
            evidence=f"prompt[{prompt.index(facts.mask_id)}] is the mask id {facts.mask_id}",
            fix="remove it: masks are placed by the engine only",
            code="CRT-1033",
        )


def _check_ids(field: str, ids: tuple[int, ...], limit: int) -> None:
    for place, token in enumerate(ids):
        if not 0 <= token < limit:
            raise BadInput(
                what=f"{field} has a token id that does not exist",
                evidence=f"{field}[{place}]={token}; ids go from 0 to {limit - 1}",
                fix="use ids of this checkpoint's tokenizer",
                code="CRT-1034",
            )


def _max_tokens(request: Request, limits: Limits) -> int:
    room = limits.context - len(request.prompt)
    asked = room if request.max_tokens is None else request.max_tokens
    if room < 1:
        raise BadInput(
            what=f"a prompt of {len(request.prompt)} tokens was given",
            evidence=f"the context is {limits.context} tokens and must hold one more",
            fix="shorten the prompt, or load with a larger context",
            code="CRT-1035",
        )
    if not 1 <= asked <= room:
        raise BadInput(
            what=f"max_tokens={asked} was asked for",
            evidence=f"context {limits.context} - prompt {len(request.prompt)} leaves {room}",
            fix=f"ask for 1 to {room} tokens, or load with a larger context",
            code="CRT-1036",
        )
    return asked


def _check_mode(request: Request, facts: ModelFacts, limits: Limits) -> None:
    needs = {
        Mode.AR: (),
        Mode.DIFFUSION: (TableClass.PREVIEW,),
        Mode.SELF_SPEC: (TableClass.PREVIEW, TableClass.VERIFY),
    }[request.mode]
    if needs and (facts.block_size < 1 or facts.mask_id is None):
        raise BadInput(
            what=f"mode {request.mode.value} was asked for",
            evidence=f"the checkpoint is causal only: block size {facts.block_size}, "
            f"mask id {facts.mask_id}",
            fix="use mode ar",
            code="CRT-1037",
        )
    for table in needs:
        if not limits.accepts(table):
            raise BadInput(
                what=f"mode {request.mode.value} was asked for",
                evidence=f"this plan does not run {table.value} passes",
                fix="use mode ar, or another backend",
                code="CRT-1038",
            )


def _threshold(request: Request, facts: ModelFacts) -> float:
    value = facts.threshold if request.threshold is None else request.threshold
    if not 0 <= value <= 1:
        raise BadInput(
            what=f"threshold={value} was asked for",
            evidence="a confidence threshold lies in 0 to 1",
            fix="use a value such as 0.95",
            code="CRT-1039",
        )
    return value


def _block_size(request: Request, facts: ModelFacts, limits: Limits) -> int:
    size = facts.block_size if request.block_size is None else request.block_size
    if request.mode is not Mode.DIFFUSION:
        return size
    if not 1 <= size <= LONGEST_BLOCK or facts.block_size % size:
        raise BadInput(
            what=f"block_size={size} was asked for",
            evidence=f"it must lie in 1 to {LONGEST_BLOCK} and divide {facts.block_size}",
            fix=f"use a divisor of the trained block size {facts.block_size}",
            code="CRT-1040",
        )
    layout = limits.layout
    limit = min(limits.max_rows, layout.rows, layout.wanted, layout.count_deltas)
    if size > limit:
        raise BadInput(
            what=f"blocks of {size} rows were asked for",
            evidence=f"one pass of this plan holds {limit} rows",
            fix="use a smaller block_size, or load with larger passes",
            code="CRT-1041",
        )
    return size


def _draft_width(request: Request, facts: ModelFacts, limits: Limits) -> int:
    if request.mode is not Mode.SELF_SPEC:
        return 1
    # the widest divisor of the block that a tape and a pass can hold
    limit = min(limits.widest_draft, limits.max_rows, limits.layout.wanted)
    divisors = [w for w in range(1, facts.block_size + 1) if facts.block_size % w == 0]
    width = request.draft_width
    if width is None:
        return max(w for w in divisors if w <= max(1, min(WIDEST_DEFAULT_DRAFT, limit)))
    if width not in divisors:
        raise BadInput(
            what=f"draft_width={width} was asked for",
            evidence=f"it must divide the trained block size {facts.block_size}",
            fix=f"use one of {divisors}",
            code="CRT-1042",
        )
    if width > max(1, limit):
        raise BadInput(
            what=f"draft_width={width} was asked for",
            evidence=f"a tape of this plan holds {limit} rows",
            fix="use a smaller draft_width, or load with a wider tape",
            code="CRT-1043",
        )
    return width


def _check_sampling(request: Request) -> None:
    s = request.sampling
    if s is None:
        return
    checks = (
        ("temperature", s.temperature, s.temperature > 0, "above 0 (leave sampling out: greedy)"),
        ("top_k", s.top_k, 0 <= s.top_k <= CANDIDATES, f"0 to {CANDIDATES}"),
        ("top_p", s.top_p, 0 < s.top_p <= 1, "above 0, at most 1"),
        ("seed", s.seed, 0 <= s.seed < 2**64, "0 to 2^64 - 1"),
    )
    for name, value, good, allowed in checks:
        if not good or not math.isfinite(value):
            raise BadInput(
                what=f"{name}={value} was asked for",
                evidence=f"{name} must be {allowed}",
                fix=f"choose another {name}",
                code="CRT-1044",
            )


def _check_controls(request: Request, limits: Limits) -> None:
    c = request.controls
    numbers = {
        "frequency": c.frequency,
        "presence": c.presence,
        "repetition": c.repetition,
        "length_penalty": c.length_penalty,
        "think_bias": c.think_bias,
    }
    for name, value in numbers.items():
        if not math.isfinite(value) or (name == "repetition" and value <= 0):
            raise BadInput(
                what=f"the response control {name}={value} was asked for",
                evidence="controls are finite numbers; repetition is above 0",
                fix=f"choose another {name}",
                code="CRT-1045",
            )
    if c.think_end >= limits.vocab_size:
        _check_ids("think_end", (c.think_end,), limits.vocab_size)
