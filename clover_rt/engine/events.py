"""What a generation tells while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clover_rt.errors import CloverError


@dataclass(frozen=True, slots=True)
class Fixed:
    """A row that a pass fixed: row of the block, token id, confidence in (0, 1]."""

    row: int
    token: int
    confidence: float


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """`done` of `total` prompt tokens are committed."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """Emitted ids, each with the probability that it was accepted with; deltas only append."""

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PassEvent:
    """One denoising pass of block `block`: what it fixed, how many masks are left, its time.

    tokens holds the whole block after the pass, None for a mask.
    """

    block: int
    index: int
    fixed: tuple[Fixed, ...]
    masks_left: int
    ms: float
    tokens: tuple[int | None, ...]

    @property
    def min_confidence(self) -> float:
        return min(f.confidence for f in self.fixed)

    @property
    def mean_confidence(self) -> float:
        return sum(f.confidence for f in self.fixed) / len(self.fixed)


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """Block `index` is decided; passes are its denoising passes in order."""

    index: int
    passes: tuple[PassEvent, ...]


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One self-speculation round.

    candidates     the pending token, then the drafts
    accepted       drafts accepted, before a stop cuts
    boundary       the first rejecting (or last) row's pick
    probabilities  of the candidates judged, up to and including the first rejected
    """

    index: int
    candidates: tuple[int, ...]
    accepted: int
    boundary: int
    probabilities: tuple[float, ...]
    ms: float

    @property
    def width(self) -> int:
        return len(self.candidates)


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The run is over. finish_reason: "stop", "length" or "cancelled".

    tokens holds every emitted id, a final stop id included; text is filled by who has a tokenizer.
    stats: the fields of `Stats`, and ms_per_pass, tokens_per_pass and tokens_per_s.
    """

    tokens: tuple[int, ...]
    finish_reason: str
    stats: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The run failed; other sequences of the same scheduler go on."""

    error: CloverError


Event = PrefillEvent | TokensEvent | PassEvent | BlockEvent | RoundEvent | EndEvent | ErrorEvent
