"""What made a pass non-finite: replay where the state is unchanged, else run the ids again."""

from __future__ import annotations

from dataclasses import replace

from clover_rt.engine.prefill import TILE, cuts
from clover_rt.engine.sequence import Sequence
from clover_rt.engine.store import Store
from clover_rt.engine.table import Place, table
from clover_rt.engine.work import Part, Work
from clover_rt.errors import OutOfMemory
from clover_rt.spec import Controls, Kind, Pass


def explain(store: Store, state: Sequence, work: Work, controls: Controls) -> str:
    """Name layer and op of the first non-finite output of this sequence; "" if there is none.

    The work has run already. A preview or verify reads the state only, so it is replayed. After a
    commit the sequence's ids are run again from an empty spare slot, over the same pages.
    """
    if any(p.kind is Kind.COMMIT for p in work.parts):
        return _explain_commit(store, state, work, controls)
    return _replay(store, Place(state.slot, state.length, work.parts, controls), work.top)


def _replay(store: Store, place: Place, top: int) -> str:
    return store.runner.explain_nonfinite(table([place]), top)


def _explain_commit(store: Store, state: Sequence, work: Work, controls: Controls) -> str:
    try:
        slot = store.slots.take()
    except OutOfMemory:
        return "a commit was not finite; no spare slot was free to find the layer with"
    try:
        store.runner.reset_slot(slot)
        layout = store.runner.layout
        rows = min(TILE, store.runner.max_rows, layout.rows)
        pages = tuple((slot, i, page) for i, page in enumerate(state.pages))
        for first in range(0, len(pages), layout.page_deltas):
            piece = pages[first : first + layout.page_deltas]
            store.runner.run(Pass(page_deltas=piece), 1)
        commit = next(p for p in work.parts if p.kind is Kind.COMMIT)
        first = state.length - len(commit.tokens)
        for start, stop in cuts(0, state.length, rows):
            # the picks may be what failed: the chunk that has an asked row asks for it too
            asks = tuple(
                replace(a, row=first + a.row - start)
                for a in commit.asks
                if start <= first + a.row < stop
            )
            part = Part(Kind.COMMIT, tuple(state.ids[start:stop]), asks)
            found = _replay(store, Place(slot, start, (part,), controls), work.top)
            if found:
                return f"{found}, at rows {start} to {stop - 1}"
        rest = tuple(p for p in work.parts if p.kind is not Kind.COMMIT)
        return _replay(store, Place(slot, state.length, rest, controls), work.top) if rest else ""
    finally:
        store.slots.give(slot)
