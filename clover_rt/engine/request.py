"""One generation as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from clover_rt.engine.sampling import Sampling
from clover_rt.spec import Controls

Drafter = Callable[[tuple[int, ...], int], Sequence[int]]
"""(counted response ids with the pending token last, drafts wanted) -> that many drafts."""


class Mode(Enum):
    """How tokens are found: blocks by denoising, one by one, or drafted and verified."""

    DIFFUSION = "diffusion"
    AR = "ar"
    SELF_SPEC = "self-spec"


class Accept(Enum):
    """When a draft is accepted: `exact` equals greedy ar; `typical` is lossy."""

    EXACT = "exact"
    TYPICAL = "typical"


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. None means: the checkpoint's own value, or the mode's default.

    prompt          token ids, at least one
    max_tokens      default: what the context leaves
    threshold, block_size, early_end   diffusion only
    accept, draft_width, drafter       self-spec only; drafter replaces the preview's drafts
    sampling        None is greedy; self-spec is greedy only
    stops           ids that end the run; they are emitted
    ignore_eos      stops neither end the run nor get the length bias
    banned          ids that are never picked
    controls        penalties and ramps; its `stops` are filled from `stops`
    """

    prompt: tuple[int, ...]
    mode: Mode = Mode.DIFFUSION
    max_tokens: int | None = None
    threshold: float | None = None
    block_size: int | None = None
    early_end: bool | None = None
    accept: Accept | None = None
    draft_width: int | None = None
    drafter: Drafter | None = None
    sampling: Sampling | None = None
    stops: tuple[int, ...] = ()
    ignore_eos: bool = False
    banned: frozenset[int] = frozenset()
    controls: Controls = field(default_factory=Controls)


@dataclass(frozen=True, slots=True)
class Plan:
    """A request after validation: every default filled in.

    closed  the prompt's last think tag is a closing one
    top     candidates asked of each row
    """

    request: Request
    max_tokens: int
    threshold: float
    block_size: int
    early_end: bool
    accept: Accept
    draft_width: int
    stops: frozenset[int]
    controls: Controls
    closed: bool
    top: int

    @property
    def rows(self) -> int:
        """Rows that the sequence can ever commit."""
        return len(self.request.prompt) + self.max_tokens
