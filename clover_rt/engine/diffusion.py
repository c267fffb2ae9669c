"""`diffusion`: blocks of masks, fixed row by row where the model is confident, then committed."""

from __future__ import annotations

from collections.abc import Generator, Set
from itertools import count

import numpy as np

from clover_rt.engine.events import BlockEvent, Event, Fixed, PassEvent, TokensEvent
from clover_rt.engine.request import Plan
from clover_rt.engine.sampling import choose
from clover_rt.engine.stats import Stats
from clover_rt.engine.think import ThinkState
from clover_rt.engine.work import Answer, Ask, Part, Work
from clover_rt.spec import Kind


class Block:
    """The rows of a block: a token, or None for a mask. A fixed row never changes.

    limit  rows that can still be emitted: what max_tokens leaves
    """

    def __init__(self, size: int, limit: int, stops: Set[int]) -> None:
        self.tokens: list[int | None] = [None] * size
        self.confidences = [0.0] * size
        self.limit = min(size, limit)
        self.stops = stops

    @property
    def masked(self) -> list[int]:
        return [r for r, t in enumerate(self.tokens) if t is None]

    def fix(self, row: int, token: int, confidence: float) -> None:
        assert self.tokens[row] is None, f"row {row} is fixed already"
        self.tokens[row] = token
        self.confidences[row] = confidence

    def front(self) -> int:
        """Return how many rows can be emitted now: fixed ones, up to the first stop."""
        for row in range(self.limit):
            if self.tokens[row] is None:
                return row
            if self.tokens[row] in self.stops:
                return row + 1
        return self.limit

    @property
    def is_decided(self) -> bool:
        """Can no later pass change what is emitted?"""
        front = self.front()
        return front == self.limit or (front > 0 and self.tokens[front - 1] in self.stops)


def diffusion(
    plan: Plan, mask_id: int, fuse: bool, stats: Stats
) -> Generator[Work | Event, Answer, str]:
    """Write blocks until a stop or max_tokens; the prompt is committed. Returns why it ended.

    fuse  a block's commit goes into the pass of the next block's first preview
    """
    think = ThinkState(plan.controls.think_end, plan.closed)
    emitted = 0
    commit: tuple[Part, ...] = ()
    counted: tuple[int, ...] = ()
    for index in count():
        block = Block(plan.block_size, plan.max_tokens - emitted, plan.stops)
        sent = 0
        passes: list[PassEvent] = []
        while block.masked and not (plan.early_end and block.is_decided):
            preview = _preview(block, mask_id, emitted, think.is_open(block.tokens))
            answer = yield Work((*commit, preview), counted, plan.top)
            stats.passes += 1
            stats.commits += len(commit)
            stats.decode_ms += answer.ms
            commit, counted = (), ()
            fixed = _fix(block, answer, plan, emitted, len(passes))
            passes.append(
                PassEvent(
                    index,
                    len(passes),
                    fixed,
                    len(block.masked),
                    answer.ms,
                    tuple(block.tokens),
                )
            )
            yield passes[-1]
            if block.front() > sent:
                yield _tokens(block, sent, block.front())
                sent = block.front()
        stats.blocks += 1
        yield BlockEvent(index, tuple(passes))
        emitted += sent
        if block.tokens[sent - 1] in plan.stops:
            return "stop"
        if emitted == plan.max_tokens:
            return "length"
        counted = tuple(t for t in block.tokens if t is not None)
        commit = (Part(Kind.COMMIT, counted),)
        think.count(counted)
        if not fuse:
            answer = yield Work(commit, counted)
            stats.commits += 1
            stats.decode_ms += answer.ms
            commit, counted = (), ()
    raise AssertionError("blocks are counted without end")


def _preview(block: Block, mask_id: int, emitted: int, is_open: bool) -> Part:
    tokens = tuple(mask_id if t is None else t for t in block.tokens)
    asks = tuple(Ask(r, emitted + r + 1, is_open) for r in block.masked)
    return Part(Kind.PREVIEW, tokens, asks)


def _fix(block: Block, answer: Answer, plan: Plan, emitted: int, index: int) -> tuple[Fixed, ...]:
    """Fix every masked row above the threshold, else the most confident one."""
    rows = block.masked
    picked = [
        choose(answer.picks, i, plan.request.sampling, emitted + row + 1, index)
        for i, row in enumerate(rows)
    ]
    bar = np.float32(plan.threshold)
    sure = [i for i, (_, confidence) in enumerate(picked) if confidence > bar]
    if not sure:
        # max returns the first of equals, which is the lowest row
        sure = [max(range(len(rows)), key=lambda i: picked[i][1])]
    out = []
    for i in sure:
        token, confidence = picked[i]
        block.fix(rows[i], token, float(confidence))
        out.append(Fixed(rows[i], token, float(confidence)))
    return tuple(out)


def _tokens(block: Block, start: int, stop: int) -> TokensEvent:
    ids = tuple(t for t in block.tokens[start:stop] if t is not None)
    return TokensEvent(ids, tuple(block.confidences[start:stop]))
