"""A small deterministic runner: its logits are a function of a key and of the ids it was shown.

The state of a slot is the tuple of ids committed to it, and a page holds the ids of its rows, so
every pass checks that what the page table shows is what the slot has committed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from clover_rt.engine import Engine, ModelFacts, Pass, Settings
from clover_rt.spec import (
    PAGE_ROWS,
    Controls,
    Kind,
    Picks,
    Segment,
    StepLayout,
    StepParams,
    TableClass,
)
from tests.reference.oracle_controls import controlled, summary

VOCAB, KNOWN, MASK, THINK_OPEN, THINK_END = 26, 24, 20, 21, 22
STOPS = (1, 2)
FACTS = ModelFacts(KNOWN, 8, MASK, 0.9, THINK_END, THINK_OPEN)


@lru_cache(maxsize=100_000)
def _noise(*key: int) -> np.ndarray:
    seed = zlib.crc32(np.array(key, np.int64).tobytes())
    return np.random.default_rng(seed).normal(0, 2.5, VOCAB)


class FakeRunner:
    """Runs passes over id tuples.

    bad      says of a segment and its ids whether a pass with it is not finite
    broken   raises in a pass, after the state of the first segment's slot has moved
    """

    row_invariant = True
    vocab_size = VOCAB
    widest_draft = 8

    def __init__(
        self,
        key: int = 0,
        slots: int = 3,
        context: int = 256,
        classes: frozenset[TableClass] = frozenset(TableClass),
        layout: StepLayout | None = None,
        bad: Callable[[Segment, tuple[int, ...]], bool] | None = None,
        broken: Callable[[Pass], None] | None = None,
    ) -> None:
        self.key, self.slots, self.context, self.classes = key, slots, context, classes
        self.layout = layout or StepLayout(
            rows=128, segments=8, wanted=64, page_deltas=4, count_deltas=16
        )
        self.max_rows = self.layout.rows
        self.pages = slots * (context // PAGE_ROWS)
        self.kv = np.full((self.pages, PAGE_ROWS), -1)
        self.table = np.full((slots, context // PAGE_ROWS), -1)
        self.ids: list[tuple[int, ...]] = [()] * slots
        self.tapes: list[tuple[int, ...] | None] = [None] * slots
        self.counts = np.zeros((slots, VOCAB), np.int32)
        self.suppressed = np.zeros((slots, VOCAB), bool)
        self.bad = bad or (lambda segment, ids: False)
        self.broken = broken or (lambda work: None)
        self.passes: list[Pass] = []
        self.explained: list[Pass] = []
        self.sharpness = 1.0

    def accepts(self, table: TableClass) -> bool:
        return table in self.classes

    def reset_slot(self, slot: int) -> None:
        self.ids[slot] = ()
        self.counts[slot] = 0

    def copy_slot(self, src: int, dst: int) -> None:
        self.ids[dst] = self.ids[src]
        self.counts[dst] = self.counts[src]
        self.tapes[dst] = None

    def load_request(self, slot: int, counts: np.ndarray, suppressed: np.ndarray) -> None:
        self.counts[slot], self.suppressed[slot] = counts, suppressed

    def load_counts(self, slot: int, counts: np.ndarray) -> None:
        self.counts[slot] = counts

    def explain_nonfinite(self, work: Pass, top: int) -> str:
        self.explained.append(work)
        return "" if self.run(work, top).finite else "layer 3, op gdn"

    def run(self, work: Pass, top: int) -> Picks:
        # the table must hold the pass, as it must for a real plan
        StepParams(self.layout).write(work)
        assert self.accepts(TableClass.of(s.kind for s in work.segments))
        self.passes.append(work)
        for slot, rows in work.advances:
            tape = self.tapes[slot]
            assert tape is not None, "an advance without a tape"
            self.ids[slot] += tape[:rows]
            self.tapes[slot] = None
        for slot, index, page in work.page_deltas:
            self.table[slot, index] = page
        for slot, token, amount in work.count_deltas:
            self.counts[slot, token] += amount
        if not work.segments:
            self.broken(work)
        logits, finite = {}, True
        for s in work.segments:
            tokens = work.tokens[s.row0 : s.row0 + s.rows]
            finite &= not self.bad(s, tokens)
            for i, row in enumerate(self._segment(s, tokens)):
                logits[s.row0 + i] = (s, row)
            self.broken(work)
        picks = [self._pick(w, work, *logits[w.row], top) for w in work.wanted]
        columns = list(zip(*picks, strict=True)) if picks else [[]] * 5
        return Picks(
            finite,
            np.array(columns[0], np.int32).reshape(-1, top),
            np.array(columns[1], np.float32).reshape(-1, top),
            *(np.array(c, np.float32) for c in columns[2:]),
        )

    def _segment(self, s: Segment, tokens: tuple[int, ...]) -> list[np.ndarray]:
        ids = self.ids[s.slot]
        assert s.position == len(ids), "a segment must stand at its slot's length"
        assert tuple(self.kv[self._rows(s.slot, 0, len(ids))]) == ids, "pages hold other ids"
        if s.kind is Kind.PREVIEW:
            return self._preview(ids, tokens)
        assert MASK not in tokens
        self.kv[self._rows(s.slot, s.position, s.position + s.rows)] = tokens
        if s.kind is Kind.COMMIT:
            self.ids[s.slot] = ids + tokens
            self.tapes[s.slot] = None
        else:
            self.tapes[s.slot] = tokens
        return [self._causal(t, s.position + i) for i, t in enumerate(tokens)]

    def _rows(self, slot: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.arange(start, stop)
        pages = self.table[slot, at // PAGE_ROWS]
        assert (pages >= 0).all(), "a row without a page"
        return pages, at % PAGE_ROWS

    def _causal(self, last: int, position: int) -> np.ndarray:
        return _noise(self.key, last, position) * self.sharpness

    def _preview(self, ids: tuple[int, ...], block: tuple[int, ...]) -> list[np.ndarray]:
        """Rows mostly guess the greedy continuation, else depend on the whole block."""
        out, last = [], ids[-1]
        for r, token in enumerate(block):
            row = self._causal(last, len(ids) + r - 1)
            salt = zlib.crc32(np.array([self.key, r, *block], np.int64).tobytes())
            if salt % 10 < 3:
                row = _noise(salt, r) * self.sharpness
            out.append(row)
            legal = np.where(np.arange(VOCAB) < MASK, row, -np.inf)
            last = int(np.argmax(legal)) if token == MASK else token
        return out

    def _pick(self, w, work: Pass, s: Segment, row: np.ndarray, top: int) -> tuple:
        counts = self.counts[s.slot].copy()
        if w.count_from >= 0:
            for token in work.tokens[s.row0 + w.count_from : w.row + 1]:
                counts[token] += 1
        controls = work.controls[work.segments.index(s)] if work.controls else Controls()
        row = controlled(row, w.response, counts, self.suppressed[s.slot], controls, w.think_open)
        return (*summary(row, top), 0.0 if w.probe < 0 else row[w.probe])


def engine_of(runner: FakeRunner, **settings: int | bool) -> Engine:
    """Return an engine over a fake runner."""
    return Engine(runner, FACTS, Settings(**settings))


def is_idle(engine: Engine) -> bool:
    """Are all slots free, all pages given back and all promises kept?"""
    store = engine.store
    return (
        store.slots.free == store.slots.slots
        and store.pages.free == store.pages.pages
        and store.pages.promised == 0
    )
