"""The engine's public face."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clover_rt.engine.events import Event
from clover_rt.engine.execute import Job, execute
from clover_rt.engine.facts import ModelFacts, Settings
from clover_rt.engine.generation import Generation
from clover_rt.engine.prefill import prefill
from clover_rt.engine.request import Request
from clover_rt.engine.runner import Runner
from clover_rt.engine.scheduler import Scheduler
from clover_rt.engine.sequence import Sequence
from clover_rt.engine.stats import Stats
from clover_rt.engine.store import Store
from clover_rt.engine.work import Work
from clover_rt.errors import BadInput, CloverError
from clover_rt.spec import Controls


class Engine:
    """Generates token ids with a runner; knows ids and stop ids, no text.

    One engine owns all slots and pages of its runner. Closing or dropping a generation frees what
    it holds.
    """

    def __init__(self, runner: Runner, facts: ModelFacts, settings: Settings | None = None) -> None:
        self.facts = facts
        self.settings = settings or Settings()
        self.store = Store(runner)
        if self.settings.prefill_chunk < 0:
            raise BadInput(
                what=f"prefill_chunk={self.settings.prefill_chunk} was asked for",
                evidence="a chunk has at least 1 row; 0 stands for as many as a pass can have",
                fix="use 0 or more",
                code="CRT-1046",
            )

    def generate(self, request: Request, sequence: Sequence | None = None) -> Generation:
        """Return the events of one generation; the last is an EndEvent.

        The request is checked before this returns (BadInput); a failure of the run is raised by
        the iterator (NonFinite, OutOfMemory, DeviceLost). `cancel` and `close` end it between
        passes.
        sequence  one whose committed ids are the prompt's beginning; it is kept, not closed
        """
        scheduler = self.scheduler()
        return Generation(scheduler, scheduler.add(request, sequence))

    def run_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """Return (index of the request, event) of generations that share passes.

        A failed one ends with an ErrorEvent; the others go on, but for those that shared a pass in
        which the device failed.
        """
        scheduler = self.scheduler()
        for request in requests:
            scheduler.add(request)
        return _drive_many(scheduler)

    def scheduler(self) -> Scheduler:
        """Return a new scheduler over this engine's slots and pages."""
        return Scheduler(self.store, self.facts, self.settings)

    def open(self) -> Sequence:
        """Return an empty sequence to commit to, snapshot and generate from; close it after."""
        return Sequence.open(self.store)

    def commit(self, sequence: Sequence, ids: Iterable[int]) -> None:
        """Commit ids to an idle sequence in chunks.

        Raises BadInput, OutOfMemory, NonFinite, or StaleState where a generation runs on it. What
        is raised by a pass makes the sequence unusable.
        """
        sequence.check_idle()
        more = tuple(ids)
        self._check_ids(more)
        whole = (*sequence.ids, *more)
        if len(whole) > self.store.runner.context:
            raise BadInput(
                what=f"more ids were to be committed than a sequence can hold: {len(whole)}",
                evidence=f"{sequence.length} committed and {len(more)} more are {len(whole)}; "
                f"the context is {self.store.runner.context}",
                fix="commit fewer ids, or load with a larger context",
                code="CRT-1059",
            )
        sequence.promise(len(whole))
        try:
            steps = prefill(sequence, whole, self.settings.prefill_chunk, None, 1, Stats())
            item = next(steps, None)
            while item is not None:
                if isinstance(item, Work):
                    (answer,) = execute(self.store, [Job(sequence, item, Controls())])
                    if isinstance(answer, CloverError):
                        raise answer
                    item = steps.send(answer)
                else:
                    item = next(steps, None)
        finally:
            sequence.forget_promise()

    def _check_ids(self, ids: tuple[int, ...]) -> None:
        last = self.store.runner.vocab_size - 1
        for place, token in enumerate(ids):
            problem = ""
            if not 0 <= token <= last:
                problem = f"ids[{place}]={token}; ids go from 0 to {last}"
            elif token == self.facts.mask_id:
                problem = f"ids[{place}]={token} is the mask"
            if problem:
                raise BadInput(
                    what="an id that cannot be committed was given",
                    evidence=problem,
                    fix="commit ids of this checkpoint's tokenizer; masks are placed by the engine",
                    code="CRT-1047",
                )


def _drive_many(scheduler: Scheduler) -> Iterator[tuple[int, Event]]:
    try:
        while scheduler.running:
            yield from scheduler.step()
    finally:
        scheduler.close()
