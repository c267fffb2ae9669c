"""One request as it runs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from clover_rt.engine.events import ErrorEvent, Event
from clover_rt.engine.scheduler import Scheduler


class Generation(Iterator[Event]):
    """The events of one request; the last is an EndEvent.

    A failure of the run is raised (NonFinite, OutOfMemory, DeviceLost). Nothing runs before the
    first `next`. Slot and pages are free after the last event, after `close`, and as soon as
    nothing refers to the generation any more.
    """

    def __init__(self, scheduler: Scheduler, handle: int) -> None:
        self._run = _Run(scheduler, handle)
        # the generator does not know this object: a cycle would keep a dropped one alive
        self._events = _events(self._run)

    def __next__(self) -> Event:
        return next(self._events)

    def cancel(self) -> None:
        """Ask for an early end: at most the pass that is running is finished.

        The next events are those of that pass and an EndEvent("cancelled") with the statistics
        so far; a run that is over ends as it would have. Only a flag is set, so that a signal
        handler or another thread may call it.
        """
        self._run.cancelled = True

    def close(self) -> None:
        """Free slot and pages now; no event follows."""
        self._events.close()
        self._run.scheduler.close()


@dataclass
class _Run:
    """The request `handle` of a scheduler of its own; is its end asked for?"""

    scheduler: Scheduler
    handle: int
    cancelled: bool = False


def _events(run: _Run) -> Generator[Event, None, None]:
    try:
        while run.scheduler.running:
            if run.cancelled:
                yield run.scheduler.cancel(run.handle)
                return
            for _, event in run.scheduler.step():
                if isinstance(event, ErrorEvent):
                    raise event.error
                yield event
    finally:
        run.scheduler.close()
