"""The table of one pass from the parts of its sequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clover_rt.engine.work import Part
from clover_rt.spec import Controls, Kind, Pass, Segment, Wanted

Delta = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Parts of the sequence in `slot` that begin at `position`, with its request's controls."""

    slot: int
    position: int
    parts: tuple[Part, ...]
    controls: Controls


def table(
    places: Iterable[Place],
    pages: Iterable[Delta] = (),
    counts: Iterable[Delta] = (),
    advances: Iterable[tuple[int, int]] = (),
) -> Pass:
    """Return the pass of these parts, one segment a part, in order; deltas as in `Pass`."""
    segments: list[Segment] = []
    tokens: list[int] = []
    controls: list[Controls] = []
    wanted: list[Wanted] = []
    for place in places:
        position = place.position
        for part in place.parts:
            row0 = len(tokens)
            segments.append(Segment(part.kind, place.slot, row0, len(part.tokens), position))
            controls.append(place.controls)
            tokens += part.tokens
            for a in part.asks:
                wanted.append(Wanted(row0 + a.row, a.response, a.think_open, a.count_from, a.probe))
            if part.kind is Kind.COMMIT:
                position += len(part.tokens)
    return Pass(
        tuple(segments),
        tuple(tokens),
        tuple(controls),
        tuple(wanted),
        tuple(pages),
        tuple(counts),
        tuple(advances),
    )
