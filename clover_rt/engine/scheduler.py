"""Several generations, one pass at a time: every round, compatible work shares a pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

from clover_rt.engine.autoregressive import autoregressive
from clover_rt.engine.diffusion import diffusion
from clover_rt.engine.events import EndEvent, ErrorEvent, Event, TokensEvent
from clover_rt.engine.execute import Job, execute, pack
from clover_rt.engine.facts import ModelFacts, Settings
from clover_rt.engine.pages import pages_for
from clover_rt.engine.prefill import prefill
from clover_rt.engine.request import Mode, Plan, Request
from clover_rt.engine.self_spec import self_spec
from clover_rt.engine.sequence import Sequence
from clover_rt.engine.stats import Stats
from clover_rt.engine.store import Store
from clover_rt.engine.think import ThinkState
from clover_rt.engine.validate import suppressed_ids, validate
from clover_rt.engine.work import Answer, Ask, Work
from clover_rt.errors import CloverError, StaleState
from clover_rt.spec import TableClass

Steps = Generator[Work | Event, Answer, str]


@dataclass
class _Run:
    """One generation: owned sequences are closed at its end, a caller's is kept."""

    handle: int
    plan: Plan
    sequence: Sequence | None
    owned: bool
    steps: Steps | None = None
    work: Work | None = None
    tokens: list[int] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)


class Scheduler:
    """Runs requests side by side; a request waits while slots or pages are short.

    The life of a request: `add` checks it; `step` admits it (slot, pages for its whole length),
    prefills chunk by chunk and then decodes, one pass a step; its last event is an EndEvent or an
    ErrorEvent, and slot and pages are free again. `cancel` and `close` free them at once.
    """

    def __init__(self, store: Store, facts: ModelFacts, settings: Settings) -> None:
        self.store = store
        self.facts = facts
        self.settings = settings
        self._waiting: deque[_Run] = deque()
        self._active: list[_Run] = []
        self._next = 0

    @property
    def running(self) -> bool:
        """Is anything left to do?"""
        return bool(self._waiting or self._active)

    def add(self, request: Request, sequence: Sequence | None = None) -> int:
        """Check a request and queue it; return its handle. Raises BadInput or StaleState.

        sequence  one whose committed ids are the prompt's beginning: only the rest is prefilled
        """
        plan = validate(request, self.facts, self.store.runner)
        if sequence is not None:
            _check_prefix(sequence, plan)
        handle, self._next = self._next, self._next + 1
        self._waiting.append(_Run(handle, plan, sequence, sequence is None))
        return handle

    def step(self) -> list[tuple[int, Event]]:
        """Admit what fits, give every active request one pass, return their events."""
        events: list[tuple[int, Event]] = []
        self._drop_unusable(events)
        self._admit(events)
        jobs = {}
        for run in self._active:
            assert run.sequence is not None and run.work is not None
            jobs[id(run.sequence)] = run
        for table in pack([_job(r) for r in self._active], self.store.runner):
            for job, answer in zip(table, self._execute(table), strict=True):
                run = jobs[id(job.state)]
                if isinstance(answer, CloverError):
                    self._fail(run, answer, events)
                else:
                    self._resume(run, answer, events)
        return events

    def _execute(self, table: list[Job]) -> Iterable[Answer | CloverError]:
        """Run a pass; an error of the device is the answer to every job in it."""
        try:
            return execute(self.store, table)
        except CloverError as error:
            return [error] * len(table)

    def _drop_unusable(self, events: list[tuple[int, Event]]) -> None:
        """End runs whose sequence was closed by its owner: they must not take others along."""
        for run in list(self._active):
            assert run.sequence is not None
            try:
                run.sequence.check()
            except StaleState as error:
                self._fail(run, error, events)

    def cancel(self, handle: int) -> EndEvent:
        """End a request now; its slot and pages are free on return."""
        for run in (*self._active, *self._waiting):
            if run.handle == handle:
                if run in self._waiting:
                    self._waiting.remove(run)
                else:
                    self._end(run)
                return _end_event(run, "cancelled")
        raise StaleState(
            what=f"request {handle} was to be cancelled",
            evidence="it has ended, or was never added",
            fix="cancel a request that is running",
            code="CRT-4104",
        )

    def close(self) -> None:
        """End everything; closing twice changes nothing."""
        self._waiting.clear()
        for run in list(self._active):
            self._end(run)

    def _admit(self, events: list[tuple[int, Event]]) -> None:
        while self._waiting:
            run = self._waiting[0]
            held = run.sequence.pages if run.sequence is not None else ()
            short = pages_for(run.plan.rows) - len(held) > self.store.pages.available
            if self._active and (short or (run.owned and not self.store.slots.free)):
                return
            self._waiting.popleft()
            try:
                self._start(run)
            except CloverError as error:
                self._fail(run, error, events)
            except BaseException:
                self._end(run)
                raise
            else:
                self._active.append(run)
                self._resume(run, None, events)

    def _start(self, run: _Run) -> None:
        if run.sequence is None:
            run.sequence = Sequence.open(self.store)
        else:
            _check_prefix(run.sequence, run.plan)
        run.sequence.promise(run.plan.rows)
        # from here on `_end` has something to give back, whatever the device says
        run.sequence.busy = True
        run.steps = self._steps(run, run.sequence)
        suppressed = suppressed_ids(run.plan.request, self.facts, self.store.runner)
        run.sequence.start_request(suppressed)

    def _steps(self, run: _Run, sequence: Sequence) -> Steps:
        plan, stats, chunk = run.plan, run.stats, self.settings.prefill_chunk
        prompt, mode = plan.request.prompt, plan.request.mode
        stats.prompt_tokens = len(prompt)
        think = ThinkState(plan.controls.think_end, plan.closed)
        ask = None if mode is Mode.DIFFUSION else Ask(0, 1, think.is_open())
        answer = yield from prefill(sequence, prompt, chunk, ask, plan.top, stats)
        if mode is Mode.DIFFUSION:
            assert self.facts.mask_id is not None
            fuse = self._can_fuse(plan)
            return (yield from diffusion(plan, self.facts.mask_id, fuse, stats))
        assert answer is not None, "a prompt leaves at least one row to run"
        if mode is Mode.AR:
            return (yield from autoregressive(plan, answer, stats))
        assert self.facts.mask_id is not None
        return (yield from self_spec(sequence, plan, self.facts.mask_id, answer, stats))

    def _can_fuse(self, plan: Plan) -> bool:
        runner = self.store.runner
        return (
            self.settings.fuse_commit
            and 2 * plan.block_size <= min(runner.max_rows, runner.layout.rows)
            and runner.layout.segments >= 2
            and runner.accepts(TableClass.COMMIT_PREVIEW)
        )

    def _resume(self, run: _Run, answer: Answer | None, events: list[tuple[int, Event]]) -> None:
        """Let a generation go on to its next work, or to its end."""
        assert run.steps is not None
        try:
            item = next(run.steps) if answer is None else run.steps.send(answer)
            while not isinstance(item, Work):
                if isinstance(item, TokensEvent):
                    run.tokens += item.ids
                    run.stats.tokens += len(item.ids)
                events.append((run.handle, item))
                item = next(run.steps)
            run.work = item
        except StopIteration as end:
            self._end(run)
            events.append((run.handle, _end_event(run, end.value)))
        except CloverError as error:
            self._fail(run, error, events)

    def _fail(self, run: _Run, error: CloverError, events: list[tuple[int, Event]]) -> None:
        self._end(run)
        events.append((run.handle, ErrorEvent(error)))

    def _end(self, run: _Run) -> None:
        """Free what a run holds; a caller's sequence is kept, ready for its next request."""
        self._active = [r for r in self._active if r is not run]
        if run.steps is not None:
            run.steps.close()
        if run.sequence is None:
            return
        if run.owned:
            run.sequence.close()
        elif run.steps is not None:
            run.sequence.busy = False
            run.sequence.forget_promise()


def _job(run: _Run) -> Job:
    assert run.sequence is not None and run.work is not None
    return Job(run.sequence, run.work, run.plan.controls)


def _check_prefix(sequence: Sequence, plan: Plan) -> None:
    """A sequence can go on with a prompt that begins with what it has committed."""
    sequence.check()
    prompt, have = plan.request.prompt, tuple(sequence.ids)
    needs_row = plan.request.mode is not Mode.DIFFUSION
    problem = ""
    if sequence.busy:
        problem = "another generation is running on it"
    elif prompt[: len(have)] != have:
        same = next((i for i, (a, b) in enumerate(zip(prompt, have, strict=False)) if a != b), None)
        where = len(prompt) if same is None else same
        problem = f"its {len(have)} committed ids differ from the prompt at token {where}"
    elif needs_row and len(prompt) == len(have):
        problem = "it holds the whole prompt, and this mode needs the logits of the last row"
    if problem:
        raise StaleState(
            what=f"a sequence of {len(have)} tokens was to go on with another prompt",
            evidence=problem,
            fix="restore a snapshot of a shorter prefix, or open a new sequence",
            code="CRT-4105",
        )


def _end_event(run: _Run, reason: str) -> EndEvent:
    return EndEvent(tuple(run.tokens), reason, run.stats.as_dict())
