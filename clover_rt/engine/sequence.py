"""One sequence: its slot, pages, committed ids, counted response ids, tape and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from clover_rt.engine.pages import pages_for
from clover_rt.engine.store import Store
from clover_rt.engine.work import Work
from clover_rt.errors import CloverError, StaleState
from clover_rt.spec import Kind, Pass


@dataclass
class Snapshot:
    """The state after `ids`: a spare slot, and the KV rows that it shares with its sequence.

    It is stale once the sequence wrote KV rows before its end, and after `release`.
    """

    slot: int
    ids: tuple[int, ...]
    counted: tuple[int, ...]
    stale: str = ""


@dataclass
class Sequence:
    """The state of one sequence. Take one from `Engine.open` and close it.

    ids      committed ids: the state stands after these
    counted  response ids of the running request that count as committed
    busy     a generation runs on it
    """

    store: Store
    slot: int
    ids: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    busy: bool = False
    _pages: list[int] = field(default_factory=list)
    _promised: int = 0
    _tape: tuple[int, ...] | None = None
    _owed: int = 0
    _snapshots: list[Snapshot] = field(default_factory=list)
    _unusable: str = ""

    @staticmethod
    def open(store: Store) -> Sequence:
        """Return an empty sequence in a fresh slot, or raise OutOfMemory."""
        slot = store.slots.take()
        try:
            store.runner.reset_slot(slot)
        except BaseException:
            store.slots.give(slot)
            raise
        return Sequence(store, slot)

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(self._pages)

    @property
    def owed(self) -> int:
        """Tape rows that the next pass advances over, before its segments."""
        return self._owed

    def check(self) -> None:
        """Raise StaleState if this sequence was closed or has failed."""
        if self._unusable:
            raise StaleState(
                what=f"the sequence in slot {self.slot} was used",
                evidence=self._unusable,
                fix="open a new sequence",
                code="CRT-4103",
            )

    def check_idle(self) -> None:
        """Raise StaleState if this sequence cannot be used, or a generation runs on it."""
        self.check()
        if self.busy:
            raise StaleState(
                what=f"the sequence in slot {self.slot} was used from outside its generation",
                evidence=f"a generation is running on it; it has {self.length} committed tokens",
                fix="let the generation end, or close it",
                code="CRT-4109",
            )

    def fail(self, why: str) -> None:
        """Make the slot unusable; `close` still gives it back. The first reason stays."""
        self._unusable = self._unusable or why

    def promise(self, rows: int) -> None:
        """Set pages aside for a length of `rows`; raises OutOfMemory."""
        more = max(0, pages_for(rows) - len(self._pages))
        self.forget_promise()
        self.store.pages.promise(more)
        self._promised = more

    def forget_promise(self) -> None:
        self.store.pages.forget(self._promised)
        self._promised = 0

    def pages_missing(self, work: Work) -> int:
        """Return how many pages `begin` will take for this work."""
        if not work.stored_rows:
            return 0
        return max(0, pages_for(self.length + work.stored_rows) - len(self._pages))

    def begin(self, work: Work) -> list[tuple[int, int, int]]:
        """Reserve pages for the rows that a pass writes; return its page deltas."""
        self.check()
        deltas = []
        for _ in range(self.pages_missing(work)):
            page = self.store.pages.take()
            self._promised -= 1
            deltas.append((self.slot, len(self._pages), page))
            self._pages.append(page)
        if work.stored_rows:
            for snapshot in self._snapshots:
                if len(snapshot.ids) > self.length and not snapshot.stale:
                    snapshot.stale = (
                        f"rows from {self.length} on were written again, after an older "
                        f"snapshot was restored; this one ends at {len(snapshot.ids)}"
                    )
        return deltas

    def finish(self, work: Work) -> None:
        """Take note of a pass that ran."""
        self._owed = 0
        self.counted.extend(work.counted)
        for part in work.parts:
            if part.kind is Kind.COMMIT:
                self.ids.extend(part.tokens)
                self._tape = None
            elif part.kind is Kind.VERIFY:
                self._tape = part.tokens

    def advance(self, rows: int) -> None:
        """Move an idle sequence over the first rows of the last verify.

        The next pass does it on the device. The tape is gone afterwards, with rows = 0 too.
        Raises StaleState: CRT-4101 no such rows, CRT-4109 a generation runs on the sequence.
        """
        self.check_idle()
        self.keep(rows)

    def keep(self, rows: int) -> None:
        """Advance, as the generation that runs on this sequence; see `advance`."""
        self.check()
        if self._tape is None or rows > len(self._tape):
            have = "no tape is left" if self._tape is None else f"it has {len(self._tape)} rows"
            raise StaleState(
                what=f"an advance over {rows} tape rows of slot {self.slot} was asked for",
                evidence=f"{have}; a tape lasts until the next commit, verify, advance or restore",
                fix="run the verify again",
                code="CRT-4101",
            )
        self.ids.extend(self._tape[:rows])
        self._owed = rows
        self._tape = None

    def settle(self) -> None:
        """Submit an advance that is still owed, alone; what it raises makes the slot unusable."""
        self.check()
        if self._owed:
            with self._failing():
                self.store.runner.run(Pass(advances=((self.slot, self._owed),)), 1)
                self._owed = 0

    def start_request(self, suppressed: npt.NDArray[np.bool_]) -> None:
        """Forget the counts of an earlier request and load this one's suppressed ids."""
        self.check()
        self.settle()
        self.counted = []
        counts = np.zeros(self.store.runner.vocab_size, np.int32)
        self.store.runner.load_request(self.slot, counts, suppressed)

    def snapshot(self) -> Snapshot:
        """Return the present state in a spare slot, or raise OutOfMemory where none is free.

        Raises StaleState (CRT-4109) where a generation runs on the sequence.
        """
        self.check_idle()
        self.settle()
        slot = self.store.slots.take()
        try:
            self.store.runner.copy_slot(self.slot, slot)
        except BaseException:
            self.store.slots.give(slot)
            raise
        snapshot = Snapshot(slot, tuple(self.ids), tuple(self.counted))
        self._snapshots.append(snapshot)
        return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Go back (or forth) to a snapshot of this sequence; raises StaleState if it is stale."""
        self.check()
        stale = snapshot.stale
        if not stale and not any(s is snapshot for s in self._snapshots):
            stale = "it was taken from another sequence"
        if not stale and self.busy:
            stale = "a generation is running on the sequence"
        if stale:
            raise StaleState(
                what=f"a snapshot of {len(snapshot.ids)} tokens was to be restored",
                evidence=stale,
                fix="restore an older snapshot, or commit the ids again",
                code="CRT-4102",
            )
        with self._failing():
            self.store.runner.copy_slot(snapshot.slot, self.slot)
        self.ids = list(snapshot.ids)
        self.counted = list(snapshot.counted)
        self._tape = None
        self._owed = 0

    def release(self, snapshot: Snapshot) -> None:
        """Give a snapshot's slot back; releasing one twice changes nothing."""
        if any(s is snapshot for s in self._snapshots):
            self._snapshots = [s for s in self._snapshots if s is not snapshot]
            self.store.slots.give(snapshot.slot)
            snapshot.stale = "it was released"

    def close(self) -> None:
        """Give slot, pages and snapshots back; closing twice changes nothing."""
        if self._unusable == _CLOSED:
            return
        self._unusable = _CLOSED
        for snapshot in list(self._snapshots):
            self.release(snapshot)
        self.forget_promise()
        self.store.pages.give(self._pages)
        self._pages = []
        self._tape = None
        self.store.slots.give(self.slot)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Make the slot unusable by what is raised inside: it may hold half of a change."""
        try:
            yield
        except BaseException as error:
            self.fail(broken_off(error))
            raise


def broken_off(error: BaseException) -> str:
    """Return why a sequence cannot be used after this error."""
    what = f" ({error.what})" if isinstance(error, CloverError) else ""
    return f"a pass over it was broken off by {type(error).__name__}{what}"


_CLOSED = "it was closed"
