"""One pass for the work of several sequences: merge, run, hand each its answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from clover_rt.engine.failure import explain
from clover_rt.engine.runner import Runner
from clover_rt.engine.sequence import Sequence as State
from clover_rt.engine.sequence import broken_off
from clover_rt.engine.store import Store
from clover_rt.engine.table import Delta, Place, table
from clover_rt.engine.work import Answer, Work
from clover_rt.errors import NonFinite
from clover_rt.spec import Controls, Kind, Pass, Picks, TableClass


@dataclass(frozen=True, slots=True)
class Job:
    """The next work of one sequence, with its request's controls."""

    state: State
    work: Work
    controls: Controls


@dataclass(frozen=True, slots=True)
class _Load:
    """What a table holds: compared with its capacities."""

    rows: int = 0
    segments: int = 0
    wanted: int = 0
    page_deltas: int = 0
    count_deltas: int = 0
    advances: int = 0
    kinds: frozenset[Kind] = frozenset()

    @staticmethod
    def of(job: Job) -> _Load:
        work = job.work
        return _Load(
            work.rows,
            len(work.parts),
            work.asks,
            job.state.pages_missing(work),
            len(set(work.counted)),
            int(job.state.owed > 0),
            frozenset(p.kind for p in work.parts),
        )

    def __add__(self, other: _Load) -> _Load:
        return _Load(
            self.rows + other.rows,
            self.segments + other.segments,
            self.wanted + other.wanted,
            self.page_deltas + other.page_deltas,
            self.count_deltas + other.count_deltas,
            self.advances + other.advances,
            self.kinds | other.kinds,
        )

    def fits(self, runner: Runner) -> bool:
        layout = runner.layout
        return (
            self.rows <= min(runner.max_rows, layout.rows)
            and self.segments <= layout.segments
            and self.wanted <= layout.wanted
            and self.page_deltas <= layout.page_deltas
            and self.count_deltas <= layout.count_deltas
            and self.advances <= layout.segments
            and runner.accepts(TableClass.of(self.kinds))
        )


def pack(jobs: Iterable[Job], runner: Runner) -> list[list[Job]]:
    """Share the jobs out over as few tables as first fit finds, in order."""
    tables: list[tuple[_Load, list[Job]]] = []
    for job in jobs:
        load = _Load.of(job)
        for i, (have, members) in enumerate(tables):
            if (have + load).fits(runner):
                tables[i] = (have + load, [*members, job])
                break
        else:
            tables.append((load, [job]))
    return [members for _, members in tables]


def assemble(jobs: Sequence[Job]) -> Pass:
    """Return the table of these jobs; the pages that it writes are reserved."""
    places: list[Place] = []
    pages: list[Delta] = []
    counts: list[Delta] = []
    advances: list[tuple[int, int]] = []
    for job in jobs:
        slot = job.state.slot
        places.append(Place(slot, job.state.length, job.work.parts, job.controls))
        pages += job.state.begin(job.work)
        counts += [(slot, i, c) for i, c in Counter(job.work.counted).items()]
        if job.state.owed:
            advances.append((slot, job.state.owed))
    return table(places, pages, counts, advances)


def execute(store: Store, jobs: Sequence[Job]) -> list[Answer | NonFinite]:
    """Run one pass; return each job's answer, or the error of a job that is not finite.

    Whatever is raised makes every sequence of the pass unusable: how far each of them got on the
    device is not known.
    """
    try:
        return _run(store, jobs)
    except BaseException as error:
        for job in jobs:
            job.state.fail(broken_off(error))
        raise


def _run(store: Store, jobs: Sequence[Job]) -> list[Answer | NonFinite]:
    top = max(job.work.top for job in jobs)
    work = assemble(jobs)
    begun = time.perf_counter()
    picks = store.runner.run(work, top)
    ms = (time.perf_counter() - begun) * 1e3
    for job in jobs:
        job.state.finish(job.work)
    answers = _answers(jobs, picks, ms)
    if picks.finite:
        return list(answers)
    return [
        _judge(store, job, answer, alone=len(jobs) == 1)
        for job, answer in zip(jobs, answers, strict=True)
    ]


def _answers(jobs: Sequence[Job], picks: Picks, ms: float) -> Iterator[Answer]:
    start = 0
    for job in jobs:
        rows = slice(start, start + job.work.asks)
        start = rows.stop
        part = Picks(
            picks.finite,
            picks.ids[rows],
            picks.logits[rows],
            picks.lse[rows],
            picks.entropy[rows],
            picks.probe[rows],
        )
        yield Answer(part, ms)


def _judge(store: Store, job: Job, answer: Answer, *, alone: bool) -> Answer | NonFinite:
    """Tell the sequence that made a pass non-finite from those that only shared it."""
    found = explain(store, job.state, job.work, job.controls)
    if not found and not alone:
        return answer
    evidence = found or "a step-by-step replay of the same rows was finite"
    job.state.fail(f"a pass was not finite: {evidence}")
    position = job.state.length
    return NonFinite(
        what=f"a pass of the sequence in slot {job.state.slot} gave inf or NaN",
        evidence=f"{evidence}; the sequence has {position} committed tokens",
        fix="check the checkpoint's weights; try another precision or another backend; "
        "start the sequence anew, its slot cannot be used any more",
        code="CRT-4001",
    )
