"""The oracle behind the engine's runner interface: paged KV, slots, tapes, counts, masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clover_rt.engine import Pass
from clover_rt.errors import StaleState
from clover_rt.spec import PAGE_ROWS, Controls, Kind, Picks, Segment, StepLayout, TableClass
from tests.reference.oracle import Oracle, Outcome
from tests.reference.oracle_controls import controlled, summary


class OracleRunner:
    """Runs passes in float64. Pages that were never reserved are NaN, so that misuse shows."""

    row_invariant = False

    def __init__(
        self,
        folder: Path,
        slots: int = 2,
        context: int = 512,
        classes: tuple[TableClass, ...] = tuple(TableClass),
        max_rows: int = 512,
    ) -> None:
        self.model = Oracle(folder)
        self.slots, self.context, self.max_rows = slots, context, max_rows
        self.classes = classes
        self.vocab_size = self.model.vocab
        self.widest_draft = 32
        self.layout = StepLayout(rows=max_rows)
        per_slot = -(-context // PAGE_ROWS)
        self.pages = slots * per_slot
        shape = (self.pages * PAGE_ROWS, self.model.kv_heads, self.model.head_dim)
        self.pools = {i: (np.full(shape, np.nan), np.full(shape, np.nan)) for i in self._kv_layers}
        self.page_table = np.full((slots, per_slot), -1, np.int32)
        self.state = [self.model.empty_state() for _ in range(slots)]
        self.tapes: list[Outcome | None] = [None] * slots
        self.counts = np.zeros((slots, self.vocab_size), np.int32)
        self.suppressed = np.zeros((slots, self.vocab_size), bool)
        self.passes: list[Pass] = []

    @property
    def _kv_layers(self) -> list[int]:
        return [i for i in range(self.model.depth) if not self.model.is_gdn(i)]

    def accepts(self, table: TableClass) -> bool:
        return table in self.classes

    def reset_slot(self, slot: int) -> None:
        self.state[slot] = self.model.empty_state()
        self.counts[slot] = 0
        self.tapes[slot] = None

    def copy_slot(self, src: int, dst: int) -> None:
        self.state[dst] = self.state[src]
        self.counts[dst] = self.counts[src]
        self.tapes[dst] = None

    def load_request(self, slot: int, counts: np.ndarray, suppressed: np.ndarray) -> None:
        self.counts[slot] = counts
        self.suppressed[slot] = suppressed

    def load_counts(self, slot: int, counts: np.ndarray) -> None:
        self.counts[slot] = counts

    def explain_nonfinite(self, work: Pass, top: int) -> str:
        return "" if self.run(work, top).finite else "layer ?, op ? (the oracle does not say)"

    def kv(self, slot: int, length: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return layer -> (k, v) of the slot's first `length` rows."""
        rows = self._rows(slot, 0, length)
        return {i: (k[rows], v[rows]) for i, (k, v) in self.pools.items()}

    def _rows(self, slot: int, start: int, stop: int) -> np.ndarray:
        at = np.arange(start, stop)
        pages = self.page_table[slot, at // PAGE_ROWS]
        assert (pages >= 0).all(), f"slot {slot} has no page for rows {start} to {stop - 1}"
        return pages * PAGE_ROWS + at % PAGE_ROWS

    def run(self, work: Pass, top: int) -> Picks:
        self.passes.append(work)
        for slot, rows in work.advances:
            tape = self.tapes[slot]
            if tape is None:
                raise StaleState("an advance", "no tape", "verify first")
            self.tapes[slot] = None
            if rows:
                self.state[slot] = {i: after[rows - 1] for i, after in tape.after.items()}
        for slot, index, page in work.page_deltas:
            self.page_table[slot, index] = page
        for slot, token, amount in work.count_deltas:
            self.counts[slot, token] += amount
        outcomes = [self._segment(s, work) for s in work.segments]
        picks = [self._pick(w, work, outcomes, top) for w in work.wanted]
        return Picks(
            all(o.finite for o in outcomes),
            np.array([p[0] for p in picks], np.int32).reshape(len(picks), top),
            np.array([p[1] for p in picks], np.float32).reshape(len(picks), top),
            np.array([p[2] for p in picks], np.float32),
            np.array([p[3] for p in picks], np.float32),
            np.array([p[4] for p in picks], np.float32),
        )

    def _segment(self, s: Segment, work: Pass) -> Outcome:
        ids = list(work.tokens[s.row0 : s.row0 + s.rows])
        kv = self.kv(s.slot, s.position)
        preview = s.kind is Kind.PREVIEW
        out = self.model.forward(ids, s.position, self.state[s.slot], kv, preview=preview)
        if preview:
            return out
        rows = self._rows(s.slot, s.position, s.position + s.rows)
        for i, (k, v) in out.kv.items():
            self.pools[i][0][rows], self.pools[i][1][rows] = k, v
        if s.kind is Kind.COMMIT:
            self.state[s.slot] = {i: after[-1] for i, after in out.after.items()}
            self.tapes[s.slot] = None
        else:
            self.tapes[s.slot] = out
        return out

    def _pick(self, wanted: Any, work: Pass, outcomes: list[Outcome], top: int) -> tuple:
        at = next(i for i, s in enumerate(work.segments) if s.row0 <= wanted.row < s.row0 + s.rows)
        s = work.segments[at]
        counts = self.counts[s.slot].copy()
        if wanted.count_from >= 0:
            for token in work.tokens[s.row0 + wanted.count_from : wanted.row + 1]:
                counts[token] += 1
        controls = work.controls[at] if work.controls else Controls()
        row = controlled(
            outcomes[at].logits[wanted.row - s.row0],
            wanted.response,
            counts,
            self.suppressed[s.slot],
            controls,
            wanted.think_open,
        )
        ids, logits, lse, entropy = summary(row, top)
        return ids, logits, lse, entropy, 0.0 if wanted.probe < 0 else row[wanted.probe]
