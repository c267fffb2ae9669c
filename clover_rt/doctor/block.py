"""The built-in model for one block on a device; runs in a child process."""

from __future__ import annotations

from typing import Any

from clover_rt import EndEvent, load

PROMPT = "Hello"
BLOCK = 32


def run(backend: str, device: str) -> dict[str, Any]:
    """Return the tokens of one block and how fast they came."""
    with load(backend=backend, device=device) as model:
        events = list(model.generate(PROMPT, max_new_tokens=BLOCK))
        end = events[-1]
        assert isinstance(end, EndEvent)
        ms = float(end.stats.get("decode_ms") or 0.0)
        return {
            "mode": str(end.stats["mode"]),
            "device": str(end.stats["device"]),
            "tokens": list(end.tokens),
            "text": end.text,
            "finish_reason": end.finish_reason,
            "tally": model.tally(),
            "tokens_per_s": 1000 * len(end.tokens) / ms if ms else 0.0,
        }
