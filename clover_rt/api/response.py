"""One response as it comes: the engine's events with text between them, cut at stop strings."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from clover_rt.engine import EndEvent, Event, Generation, TokensEvent
from clover_rt.engine.stats import rates
from clover_rt.text import Stream


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Text that was decided: deltas are valid Unicode and only append."""

    text: str


AnyEvent = Event | TextEvent


class Response(Iterator[AnyEvent]):
    """The events of one response; the last is an EndEvent.

    about  what is known before the first pass: mode, backend, device, device_id, engine, chosen
           (why this device), first_run, precision, threads, context, prompt_tokens, ops, native_ops
           and host_ops; the statistics at the end repeat it
    A failure of the run is raised (NonFinite, OutOfMemory, DeviceLost). Slot and pages are free
    after the last event, after `close`, and as soon as nothing refers to the response any more.
    """

    def __init__(self, run: Generation, stream: Stream | None, about: Mapping[str, Any]) -> None:
        self.about = about
        self._run = run
        # the generator does not know this object: a cycle would keep a dropped one alive
        self._events = _follow(run, _Said(stream, about))

    def __enter__(self) -> Response:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __next__(self) -> AnyEvent:
        return next(self._events)

    def cancel(self) -> None:
        """Ask for an early end: at most the pass that is running is finished.

        An EndEvent("cancelled") with text and statistics so far still follows. Only a flag is
        set, so that a signal handler or another thread may call it.
        """
        self._run.cancel()

    def close(self) -> None:
        """End now and free the sequence; no event follows."""
        self._events.close()
        self._run.close()


def _follow(run: Generation, said: _Said) -> Generator[AnyEvent, None, None]:
    stopped = False
    for event in run:
        if isinstance(event, EndEvent):
            yield from said.text(said.rest())
            yield said.end(event)
        elif not isinstance(event, TokensEvent):
            yield event
        elif not stopped:
            ids, delta, stopped = said.feed(event.ids)
            yield TokensEvent(ids, event.probabilities[: len(ids)])
            yield from said.text(delta)
            if stopped:
                run.cancel()


class _Said:
    """The ids and the text that a response has given so far."""

    def __init__(self, stream: Stream | None, about: Mapping[str, Any]) -> None:
        self._stream = stream
        self._about = about
        self._tokens: list[int] = []
        self._text: list[str] = []

    @property
    def _stopped(self) -> str | None:
        return self._stream.stopped if self._stream is not None else None

    def feed(self, ids: Sequence[int]) -> tuple[tuple[int, ...], str, bool]:
        """Return the ids up to one that completes a stop string, their text, is there such one?"""
        delta, taken = "", 0
        while taken < len(ids) and self._stopped is None:
            delta += self._stream.feed([ids[taken]]) if self._stream is not None else ""
            taken += 1
        self._tokens += ids[:taken]
        return tuple(ids[:taken]), delta, self._stopped is not None

    def rest(self) -> str:
        """Return the text that was held back."""
        return self._stream.flush() if self._stream is not None else ""

    def text(self, delta: str) -> Iterator[TextEvent]:
        """Yield the event of a delta, none for an empty one."""
        if delta:
            self._text.append(delta)
            yield TextEvent(delta)

    def end(self, event: EndEvent) -> EndEvent:
        """Return the engine's end with the text, and with counts of what was not cut off."""
        count, counted = len(self._tokens), event.stats
        stats = {
            **self._about,
            **counted,
            **rates(count - counted["prefill_tokens"], counted["passes"], counted["decode_ms"]),
            "tokens": count,
            "dropped_tokens": len(event.tokens) - count,
            "stop_string": self._stopped,
        }
        reason = event.finish_reason if self._stopped is None else "stop"
        return replace(
            event,
            tokens=tuple(self._tokens),
            text="".join(self._text),
            finish_reason=reason,
            stats=stats,
        )
