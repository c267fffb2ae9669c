"""One run of the suite: choose, run, report."""

from __future__ import annotations

from collections.abc import Callable

from clover_rt_conformance.catalog import Choice, chosen, digest
from clover_rt_conformance.client import Runner
from clover_rt_conformance.report import Report
from clover_rt_conformance.trial import Outcome, Result, result

WAITS = "runs in the full lane: --lane full"
Progress = Callable[[int, int, Result], None]


def run_suite(
    report: Report,
    runner: Runner,
    choice: Choice,
    on_progress: Progress | None = None,
) -> Report:
    """Run the chosen trials and add their results to the report; return it.

    on_progress is told (done, total, result) after each trial.
    """
    trials = chosen(choice)
    lane = "full" if choice.is_full else "usual"
    report.about = runner.about
    report.required = choice.required
    report.cases = {"hash": digest(trials), "count": len(trials), "lane": lane}
    for i, (trial, precision) in enumerate(trials):
        if choice.waits(trial):
            found = result(trial, precision, Outcome.NOT_RUN, WAITS)
        else:
            found = runner.run(trial, precision, report.seed)
        report.results.append(found)
        if on_progress is not None:
            on_progress(i + 1, len(trials), found)
    return report
