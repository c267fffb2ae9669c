"""Counters of one run, and its speed."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Stats:
    """What a run cost.

    Passes over the prompt are prefill, every other pass is decoding. The last prompt row picks
    the first token of `ar` and `self-spec`, so that token belongs to the prefill.

    tokens          emitted ids
    prefill_tokens  those that the prefill picked: 1 in ar and self-spec, 0 in diffusion
    passes          decode passes: previews of diffusion; single rows of ar; previews, verifies
                    and single rows of self-spec; not the commits of blocks
    commits         blocks committed
    rounds          self-speculation rounds; drafted and accepted count their drafts
    prefill_ms      milliseconds of the passes over the prompt
    decode_ms       milliseconds of the other passes, commits of blocks included
    """

    prompt_tokens: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    passes: int = 0
    blocks: int = 0
    commits: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the counters, and `rates` of what the decode passes decoded."""
        out: dict[str, float] = asdict(self)
        return out | rates(self.tokens - self.prefill_tokens, self.passes, self.decode_ms)


def rates(decoded: int, passes: int, decode_ms: float) -> dict[str, float]:
    """Return ms_per_pass, tokens_per_pass and tokens_per_s of `decoded` tokens; 0 without passes.

    The time of a block's commit is shared by the passes, so that tokens_per_s is 1000 times
    tokens_per_pass over ms_per_pass in every mode.
    """
    return {
        "ms_per_pass": decode_ms / passes if passes else 0.0,
        "tokens_per_pass": decoded / passes if passes else 0.0,
        "tokens_per_s": 1000 * decoded / decode_ms if decode_ms else 0.0,
    }
