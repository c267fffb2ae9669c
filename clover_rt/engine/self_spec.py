"""`self-spec`: a preview drafts, a causal verify judges, the state advances over what is kept."""

from __future__ import annotations

import math
from collections.abc import Generator
from itertools import count

from clover_rt.engine.events import Event, RoundEvent, TokensEvent
from clover_rt.engine.request import Accept, Plan
from clover_rt.engine.sampling import choose, probability
from clover_rt.engine.sequence import Sequence
from clover_rt.engine.stats import Stats
from clover_rt.engine.think import ThinkState
from clover_rt.engine.work import Answer, Ask, Part, Work
from clover_rt.errors import BadInput
from clover_rt.spec import Kind, Picks

TYPICAL_CAP = 0.9
TYPICAL_SHARE = 0.6


def self_spec(
    sequence: Sequence, plan: Plan, mask_id: int, answer: Answer, stats: Stats
) -> Generator[Work | Event, Answer, str]:
    """Decode from the answer for the prompt's last row. Returns why it ended."""
    think = ThinkState(plan.controls.think_end, plan.closed)
    pending, first = choose(answer.picks, 0, None, 1, 0)
    think.count((pending,))
    emitted = 1
    stats.prefill_tokens = 1
    # ids that are emitted but not yet counted on the device
    fresh: tuple[int, ...] = (pending,)
    yield TokensEvent(fresh, (float(first),))
    for index in count():
        if pending in plan.stops:
            return "stop"
        if emitted == plan.max_tokens:
            return "length"
        width = narrowed(plan.draft_width, plan.max_tokens - emitted)
        run = _Round(plan, think, stats, mask_id, index, emitted, pending, fresh)
        result, p = yield from run.single() if width == 1 else run.drafted(sequence, width)
        stats.rounds += 1
        stats.drafted += width - 1
        stats.accepted += result.accepted
        yield result
        kept = result.candidates[1 : 1 + result.accepted]
        cut = next((i for i, t in enumerate(kept) if t in plan.stops), None)
        if cut is not None:
            kept = kept[: cut + 1]
        if width > 1:
            sequence.keep(1 + len(kept))
        fresh = kept if cut is not None else (*kept, result.boundary)
        emitted += len(fresh)
        think.count(fresh)
        yield TokensEvent(fresh, (*result.probabilities[: len(kept)], p)[: len(fresh)])
        pending = fresh[-1]
    raise AssertionError("rounds are counted without end")


def narrowed(width: int, left: int) -> int:
    """Halve a width until it does not exceed the tokens left."""
    while width > left:
        width //= 2
    return max(width, 1)


class _Round:
    """One round from a pending token, which is the `emitted`-th response token."""

    def __init__(
        self,
        plan: Plan,
        think: ThinkState,
        stats: Stats,
        mask_id: int,
        index: int,
        emitted: int,
        pending: int,
        fresh: tuple[int, ...],
    ) -> None:
        self.plan = plan
        self.think = think
        self.stats = stats
        self.mask_id = mask_id
        self.index = index
        self.emitted = emitted
        self.pending = pending
        self.fresh = fresh

    def single(self) -> Generator[Work | Event, Answer, tuple[RoundEvent, float]]:
        """One causal row: no draft fits any more."""
        ask = Ask(0, self.emitted + 1, self.think.is_open())
        answer = yield Work((Part(Kind.COMMIT, (self.pending,), (ask,)),), self.fresh)
        self._count(answer)
        token, p = choose(answer.picks, 0, None, self.emitted + 1, 0)
        return RoundEvent(self.index, (self.pending,), 0, token, (), answer.ms), float(p)

    def drafted(
        self, sequence: Sequence, width: int
    ) -> Generator[Work | Event, Answer, tuple[RoundEvent, float]]:
        """Draft width - 1 tokens and judge them in one verify."""
        fresh, ms = self.fresh, 0.0
        if self.plan.request.drafter is not None:
            candidates = self._given(sequence, width)
        else:
            answer = yield self._preview(width)
            self._count(answer)
            ms, fresh = answer.ms, ()
            candidates = (self.pending, *(int(i) for i in answer.picks.ids[:, 0]))
        answer = yield self._verify(candidates, fresh)
        self._count(answer)
        accepted, probabilities = judge(answer.picks, candidates, self.plan.accept)
        token, p = choose(answer.picks, accepted, None, self.emitted + accepted + 1, 0)
        event = RoundEvent(self.index, candidates, accepted, token, probabilities, ms + answer.ms)
        return event, float(p)

    def _count(self, answer: Answer) -> None:
        """Count a pass when it ran: a run can be cancelled in the middle of a round."""
        self.stats.passes += 1
        self.stats.decode_ms += answer.ms

    def _given(self, sequence: Sequence, width: int) -> tuple[int, ...]:
        drafter = self.plan.request.drafter
        assert drafter is not None
        drafts = tuple(drafter((*sequence.counted, *self.fresh), width - 1))
        vocab = sequence.store.runner.vocab_size
        if len(drafts) != width - 1 or not all(0 <= d < vocab for d in drafts):
            raise BadInput(
                what=f"a drafter was asked for {width - 1} token ids",
                evidence=f"it gave {list(drafts)}; ids go from 0 to {vocab - 1}",
                fix="return exactly as many ids as asked for",
                code="CRT-1049",
            )
        return (self.pending, *drafts)

    def _preview(self, width: int) -> Work:
        is_open = self.think.is_open()
        asks = tuple(Ask(r, self.emitted + r, is_open) for r in range(1, width))
        tokens = (self.pending, *[self.mask_id] * (width - 1))
        return Work((Part(Kind.PREVIEW, tokens, asks),), self.fresh)

    def _verify(self, candidates: tuple[int, ...], fresh: tuple[int, ...]) -> Work:
        exact = self.plan.accept is Accept.EXACT
        asks = []
        for j in range(len(candidates)):
            is_open = self.think.is_open(candidates[1 : j + 1] if exact else ())
            probe = candidates[j + 1] if j + 1 < len(candidates) else -1
            asks.append(Ask(j, self.emitted + j + 1, is_open, 1 if exact else -1, probe))
        return Work((Part(Kind.VERIFY, candidates, tuple(asks)),), fresh)


def judge(
    picks: Picks, candidates: tuple[int, ...], accept: Accept
) -> tuple[int, tuple[float, ...]]:
    """Return how many drafts are accepted, and the probabilities of those judged."""
    probabilities = []
    for j, candidate in enumerate(candidates[1:]):
        lse = float(picks.lse[j])
        p = float(probability(float(picks.probe[j]), lse))
        probabilities.append(p)
        if accept is Accept.EXACT:
            good = int(picks.ids[j, 0]) == candidate
        else:
            bar = TYPICAL_SHARE * math.exp(-float(picks.entropy[j]))
            good = p >= min(TYPICAL_CAP, bar)
        if not good:
            return j, tuple(probabilities)
    return len(candidates) - 1, tuple(probabilities)
