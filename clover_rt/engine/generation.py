"""One request as it runs."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from clover_rt.engine.events import ErrorEvent, Event
from clover_rt.engine.scheduler import Scheduler


class Generation(Iterator[Event]):
    """The events of one request; the last is an EndEvent.

    A failure of the run is raised (NonFinite, OutOfMemory). Nothing runs before the first `next`.
    """

    def __init__(self, scheduler: Scheduler, handle: int) -> None:
        self._scheduler = scheduler
        self._handle = handle
        self._cancelled = False
        self._events = self._run()

    def __next__(self) -> Event:
        return next(self._events)

    def cancel(self) -> None:
        """Ask for an early end: at most the pass that is running is finished.

        The next events are those of that pass and an EndEvent("cancelled") with the statistics
        so far; a run that is over ends as it would have. Only a flag is set, so that a signal
        handler or another thread may call it.
        """
        self._cancelled = True

    def close(self) -> None:
        """Free slot and pages now; no event follows."""
        self._events.close()
        self._scheduler.close()

    def _run(self) -> Generator[Event, None, None]:
        try:
            while self._scheduler.running:
                if self._cancelled:
                    yield self._scheduler.cancel(self._handle)
                    return
                for _, event in self._scheduler.step():
                    if isinstance(event, ErrorEvent):
                        raise event.error
                    yield event
        finally:
            self._scheduler.close()
