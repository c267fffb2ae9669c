"""Events as JSON data: what `run --json` and `--debug-blocks` print. docs/json.md documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clover_rt.errors import CloverError

if TYPE_CHECKING:
    from clover_rt.api import AnyEvent, BlockEvent, EndEvent, PassEvent, Response, RoundEvent

SCHEMA = 1
"""Version of the lines: it changes when a field is removed or changes its meaning."""


def start(response: Response, model: str) -> dict[str, Any]:
    """Return the first line: what will run, and where."""
    from clover_rt import __version__

    about = {"schema": SCHEMA, "version": __version__, "model": model}
    return {"event": "start", **about, **response.about}


def plan(report: dict[str, Any]) -> dict[str, Any]:
    """Return the line of --explain: where each operation runs, and why."""
    return {"event": "plan", "schema": SCHEMA, "plan": report}


def as_dict(event: AnyEvent) -> dict[str, Any] | None:
    """Return the line of an event; None for one that has no line (passes are in their block)."""
    # the module is loaded already: events come from it
    from clover_rt import api

    if isinstance(event, api.PrefillEvent):
        return {"event": "prefill", "done": event.done, "total": event.total}
    if isinstance(event, api.TokensEvent):
        probabilities = list(event.probabilities)
        return {"event": "tokens", "ids": list(event.ids), "probabilities": probabilities}
    if isinstance(event, api.TextEvent):
        return {"event": "text", "text": event.text}
    if isinstance(event, api.BlockEvent):
        return block(event)
    if isinstance(event, api.RoundEvent):
        return draft_round(event)
    if isinstance(event, api.EndEvent):
        return end(event)
    return None


def block(event: BlockEvent) -> dict[str, Any]:
    """Return the line of a decided block."""
    passes = [denoising_pass(p) for p in event.passes]
    return {"event": "block", "block": event.index, "passes": passes}


def denoising_pass(event: PassEvent) -> dict[str, Any]:
    """Return one denoising pass: a line of --debug-blocks."""
    return {
        "block": event.block,
        "pass": event.index,
        "accepted": len(event.fixed),
        "min_confidence": event.min_confidence,
        "mean_confidence": event.mean_confidence,
        "masks_left": event.masks_left,
        "ms": event.ms,
    }


def draft_round(event: RoundEvent) -> dict[str, Any]:
    """Return the line of a self-speculation round."""
    return {
        "event": "round",
        "round": event.index,
        "candidates": list(event.candidates),
        "accepted": event.accepted,
        "boundary": event.boundary,
        "probabilities": list(event.probabilities),
        "ms": event.ms,
    }


def end(event: EndEvent) -> dict[str, Any]:
    """Return the last line of a run that did not fail."""
    return {
        "event": "end",
        "tokens": list(event.tokens),
        "text": event.text,
        "finish_reason": event.finish_reason,
        "stats": dict(event.stats),
    }


def failure(error: CloverError) -> dict[str, Any]:
    """Return the last line of a run that failed."""
    return {
        "event": "error",
        "code": error.code,
        "what": error.what,
        "evidence": error.evidence,
        "fix": error.fix,
        "exit_code": error.exit_code,
    }
