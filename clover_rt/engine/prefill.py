"""Chunked prefill: where a prompt is cut, and the work of its chunks."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from clover_rt.engine.events import Event, PrefillEvent
from clover_rt.engine.sequence import Sequence
from clover_rt.engine.stats import Stats
from clover_rt.engine.work import Answer, Ask, Part, Work
from clover_rt.spec import PAGE_ROWS, Kind

TILE = 64


def cuts(start: int, end: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield (first, past the last) row of each chunk of start .. end - 1.

    A chunk longer than 64 rows starts and ends at absolute multiples of 64, the prompt's end
    excepted: a chunked scan then has the same tiles whatever the chunk size is.
    """
    while start < end:
        stop = min(start + chunk, end)
        if stop - start > TILE:
            if start % TILE:
                stop = start + TILE - start % TILE
            elif stop < end:
                stop -= stop % TILE
        yield start, stop
        start = stop


def prefill(
    sequence: Sequence,
    prompt: tuple[int, ...],
    chunk: int,
    ask: Ask | None,
    top: int,
    stats: Stats,
) -> Generator[Work | Event, Answer, Answer | None]:
    """Commit what the sequence lacks of the prompt; return the last chunk's answer.

    ask is about the prompt's last row; its row number is filled in here.
    """
    limit = min(
        sequence.store.runner.max_rows,
        sequence.store.runner.layout.rows,
        PAGE_ROWS * (sequence.store.runner.layout.page_deltas - 1),
    )
    rows = min(chunk or limit, limit)
    answer = None
    for start, stop in cuts(sequence.length, len(prompt), rows):
        asks: tuple[Ask, ...] = ()
        if ask is not None and stop == len(prompt):
            asks = (Ask(stop - start - 1, ask.response, ask.think_open),)
        answer = yield Work((Part(Kind.COMMIT, prompt[start:stop], asks),), top=top)
        stats.prefill_ms += answer.ms
        yield PrefillEvent(stop, len(prompt))
    return answer
