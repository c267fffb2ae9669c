"""Counters of one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Stats:
    """What a run cost.

    passes    previews of diffusion; picked rows of ar; previews, verifies and single rows of
              self-spec; neither prefill nor the commits of blocks
    commits   blocks committed
    rounds    self-speculation rounds; drafted and accepted count their drafts
    """

    prompt_tokens: int = 0
    tokens: int = 0
    passes: int = 0
    blocks: int = 0
    commits: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the counters and what is derived from them."""
        out: dict[str, float] = asdict(self)
        out["ms_per_pass"] = self.decode_ms / self.passes if self.passes else 0.0
        out["tokens_per_pass"] = self.tokens / self.passes if self.passes else 0.0
        return out
