"""Segments, and StepParams: the one buffer of numbers that changes between passes.

A pass is described by a table of segments. Everything that a kernel needs to know about it lies in
one buffer of at most 64 KB, little-endian 32-bit words, in the order of `StepLayout.sections`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.errors import CloverError

Array = npt.NDArray[Any]
PAGE_ROWS = 64
MAX_BYTES = 64 * 1024
MAX_STOPS = 20


class Kind(IntEnum):
    """What the rows of a segment are.

    COMMIT   causal rows that advance the state of their slot
    PREVIEW  a block of rows that see each other; the state is read only
    VERIFY   causal rows; the state is read only, a tape is left, KV rows are written
    """

    COMMIT = 0
    PREVIEW = 1
    VERIFY = 2


class TableClass(Enum):
    """Which kinds a table may hold; kernels are bound for one class."""

    COMMIT = "commit"
    PREVIEW = "preview"
    VERIFY = "verify"
    COMMIT_PREVIEW = "commit_preview"
    MIXED = "mixed"

    @property
    def has_preview(self) -> bool:
        return self in (TableClass.PREVIEW, TableClass.COMMIT_PREVIEW, TableClass.MIXED)

    @property
    def has_verify(self) -> bool:
        return self in (TableClass.VERIFY, TableClass.MIXED)

    @staticmethod
    def of(kinds: Iterable[Kind]) -> TableClass:
        """Return the narrowest class that holds these kinds (none at all: commit)."""
        present = set(kinds)
        if present == {Kind.COMMIT, Kind.PREVIEW}:
            return TableClass.COMMIT_PREVIEW
        if len(present) > 1:
            return TableClass.MIXED
        return {Kind.PREVIEW: TableClass.PREVIEW, Kind.VERIFY: TableClass.VERIFY}.get(
            next(iter(present), Kind.COMMIT), TableClass.COMMIT
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows row0 .. row0 + rows - 1 of a pass: one slot's, from `position` on.

    position is the number of tokens before the segment: its rows see the slot's KV rows
    0 .. position - 1, and row i stands at position + i.
    """

    kind: Kind
    slot: int
    row0: int
    rows: int
    position: int


@dataclass(frozen=True, slots=True)
class Controls:
    """Response controls of one request; the neutral values change nothing.

    A ramp is clamp((P - start) / window, 0, 1), and 1 if P > start where window <= 0.
    """

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    length_penalty: float = 0.0
    length_start: int = 8192
    length_window: int = 8192
    think_bias: float = 0.0
    think_start: int = 4096
    think_window: int = 4096
    think_end: int = -1
    stops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row whose logits are wanted.

    row         row of the pass
    response    P: the 1-based response position that the pick would take
    think_open  the `</think>` bias applies to this row
    count_from  rows count_from .. row of its segment count as committed too; -1 for none
    probe       an id whose logit is returned as well; -1 for none
    """

    row: int
    response: int
    think_open: bool = False
    count_from: int = -1
    probe: int = -1


@dataclass(frozen=True, slots=True)
class Pass:
    """One table of a pass.

    segments lie one behind the other from row 0 on and cover `tokens`; controls is one a segment,
    or empty for neutral ones. Deltas are (slot, page index, page) and (slot, id, amount); advances
    are (slot, rows). Advances run first, then the deltas are applied, then the segments run.
    """

    segments: tuple[Segment, ...] = ()
    tokens: tuple[int, ...] = ()
    controls: tuple[Controls, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    page_deltas: tuple[tuple[int, int, int], ...] = ()
    count_deltas: tuple[tuple[int, int, int], ...] = ()
    advances: tuple[tuple[int, int], ...] = ()

    @property
    def table(self) -> TableClass:
        return TableClass.of(s.kind for s in self.segments)


HEADER = ("version", "rows", "segments", "wanted", "page_deltas", "count_deltas", "advances", "_")
SEGMENT_DTYPE = np.dtype(
    [(n, "<i4") for n in ("kind", "slot", "row0", "rows", "position", "_0", "_1", "_2")]
)
CONTROLS_DTYPE = np.dtype(
    [
        ("frequency", "<f4"),
        ("presence", "<f4"),
        ("repetition", "<f4"),
        ("length_penalty", "<f4"),
        ("length_start", "<i4"),
        ("length_window", "<i4"),
        ("think_bias", "<f4"),
        ("think_start", "<i4"),
        ("think_window", "<i4"),
        ("think_end", "<i4"),
        ("stop_count", "<i4"),
        ("stops", "<i4", (MAX_STOPS,)),
        ("_", "<i4"),
    ]
)
WANTED_DTYPE = np.dtype(
    [
        (n, "<i4")
        for n in ("row", "segment", "response", "think_open", "count_from", "probe", "_0", "_1")
    ]
)
PAGE_DELTA_DTYPE = np.dtype([(n, "<i4") for n in ("slot", "index", "page", "_")])
COUNT_DELTA_DTYPE = np.dtype([(n, "<i4") for n in ("slot", "id", "amount", "_")])
ADVANCE_DTYPE = np.dtype([(n, "<i4") for n in ("slot", "rows")])


@dataclass(frozen=True)
class StepLayout:
    """The byte layout of StepParams for given capacities.

    section         item                                            items
    header          int32 [8], names in HEADER                      1
    segments        int32: kind, slot, row0, rows, position, 3 pad  segments
    controls        128 bytes, CONTROLS_DTYPE, one a segment        segments
    wanted          int32: row, segment, response, think_open,
                    count_from, probe, 2 pad                        wanted
    page_deltas     int32: slot, index, page, pad                   page_deltas
    count_deltas    int32: slot, id, amount, pad                    count_deltas
    advances        int32: slot, rows                               segments
    tokens          int32: token id of each row                     rows
    row_segment     int32: segment of each row                      rows
    """

    rows: int = 2048
    segments: int = 64
    wanted: int = 512
    page_deltas: int = 128
    count_deltas: int = 512

    @cached_property
    def sections(self) -> dict[str, tuple[int, np.dtype[Any], int]]:
        """Return name -> (byte offset, item type, items)."""
        table = (
            ("header", np.dtype("<i4"), len(HEADER)),
            ("segments", SEGMENT_DTYPE, self.segments),
            ("controls", CONTROLS_DTYPE, self.segments),
            ("wanted", WANTED_DTYPE, self.wanted),
            ("page_deltas", PAGE_DELTA_DTYPE, self.page_deltas),
            ("count_deltas", COUNT_DELTA_DTYPE, self.count_deltas),
            ("advances", ADVANCE_DTYPE, self.segments),
            ("tokens", np.dtype("<i4"), self.rows),
            ("row_segment", np.dtype("<i4"), self.rows),
        )
        out, offset = {}, 0
        for name, dtype, items in table:
            out[name] = (offset, dtype, items)
            offset += dtype.itemsize * items
        return out

    @property
    def nbytes(self) -> int:
        offset, dtype, items = self.sections["row_segment"]
        return offset + dtype.itemsize * items


VERSION = 1


class StepParams:
    """Typed views over a StepParams buffer: live, so one object serves every pass.

    buffer  uint8 [layout.nbytes]
    """

    def __init__(self, layout: StepLayout, buffer: Array | None = None) -> None:
        if layout.nbytes > MAX_BYTES:
            raise CloverError(
                what=f"a step table of {layout.nbytes} bytes was asked for",
                evidence=f"the limit is {MAX_BYTES} bytes; capacities {layout}",
                fix="lower the row, segment or wanted capacity",
                code="CRT-9010",
            )
        self.layout = layout
        fresh = buffer is None
        self.buffer: Array = np.zeros(layout.nbytes, np.uint8) if buffer is None else buffer
        views = {}
        for name, (offset, dtype, items) in layout.sections.items():
            views[name] = self.buffer[offset : offset + dtype.itemsize * items].view(dtype)
        self.header: Array = views["header"]
        self._segments: Array = views["segments"]
        self._controls: Array = views["controls"]
        self._wanted: Array = views["wanted"]
        self._page_deltas: Array = views["page_deltas"]
        self._count_deltas: Array = views["count_deltas"]
        self._advances: Array = views["advances"]
        self._tokens: Array = views["tokens"]
        self._row_segment: Array = views["row_segment"]
        if fresh:
            self.header[0] = VERSION

    @property
    def rows(self) -> int:
        return int(self.header[1])

    @property
    def wanted_rows(self) -> int:
        return int(self.header[3])

    @property
    def segments(self) -> list[Segment]:
        """Return the segment table as values."""
        words = self._segments.view("<i4").reshape(-1, 8)[: self.header[2]].tolist()
        return [Segment(Kind(k), slot, row0, n, pos) for k, slot, row0, n, pos, *_ in words]

    @property
    def controls(self) -> Array:
        return self._controls[: self.header[2]]

    @property
    def wanted(self) -> Array:
        return self._wanted[: self.header[3]]

    @property
    def page_deltas(self) -> Array:
        return self._page_deltas[: self.header[4]]

    @property
    def count_deltas(self) -> Array:
        return self._count_deltas[: self.header[5]]

    @property
    def advances(self) -> list[tuple[int, int]]:
        """Return (slot, rows) of each advance."""
        entries = self._advances.view("<i4").reshape(-1, 2)[: self.header[6]].tolist()
        return [(slot, rows) for slot, rows in entries]

    @property
    def tokens(self) -> Array:
        return self._tokens[: self.header[1]]

    @property
    def row_segment(self) -> Array:
        return self._row_segment[: self.header[1]]

    def positions(self) -> Array:
        """Return the absolute position of each row, int64 [rows]."""
        out = np.empty(self.rows, np.int64)
        for s in self.segments:
            out[s.row0 : s.row0 + s.rows] = np.arange(s.position, s.position + s.rows)
        return out

    def write(self, work: Pass) -> None:
        """Write a table.

        One over a capacity raises CRT-9011, more stop ids than fit CRT-9012; both leave the
        buffer alone.
        """
        segments, tokens, wanted = work.segments, work.tokens, work.wanted
        sizes = dict(
            rows=(len(tokens), self.layout.rows),
            segments=(len(segments), self.layout.segments),
            wanted=(len(wanted), self.layout.wanted),
            page_deltas=(len(work.page_deltas), self.layout.page_deltas),
            count_deltas=(len(work.count_deltas), self.layout.count_deltas),
            advances=(len(work.advances), self.layout.segments),
        )
        for name, (size, capacity) in sizes.items():
            if size > capacity:
                raise CloverError(
                    what=f"a pass with {size} {name} was asked for",
                    evidence=f"the table holds {capacity}",
                    fix="make more passes of fewer rows or sequences",
                    code="CRT-9011",
                )
        row_segment = [i for i, s in enumerate(segments) for _ in range(s.rows)]
        assert len(row_segment) == len(tokens), "segments must cover the tokens"
        controls = work.controls or (Controls(),) * len(segments)
        records = [_controls_record(c) for c in controls]
        self.header[:] = (VERSION, *(size for size, _ in sizes.values()), 0)
        for i, s in enumerate(segments):
            self._segments[i] = (s.kind, s.slot, s.row0, s.rows, s.position, 0, 0, 0)
            self._controls[i] = records[i]
        for i, w in enumerate(wanted):
            segment = row_segment[w.row]
            self._wanted[i] = (
                w.row,
                segment,
                w.response,
                int(w.think_open),
                w.count_from,
                w.probe,
                0,
                0,
            )
        for i, page in enumerate(work.page_deltas):
            self._page_deltas[i] = (*page, 0)
        for i, count in enumerate(work.count_deltas):
            self._count_deltas[i] = (*count, 0)
        for i, advance in enumerate(work.advances):
            self._advances[i] = advance
        self._tokens[: len(tokens)] = tokens
        self._row_segment[: len(tokens)] = row_segment

    def drop_deltas(self) -> None:
        """Forget the deltas, so that a pass can be replayed without applying them twice."""
        self.header[4] = 0
        self.header[5] = 0


def _controls_record(c: Controls) -> tuple[Any, ...]:
    if len(c.stops) > MAX_STOPS:
        raise CloverError(
            what=f"a request with {len(c.stops)} stop ids was made",
            evidence=f"the step table holds {MAX_STOPS} a sequence",
            fix="ask for fewer stop ids",
            code="CRT-9012",
        )
    stops = (*c.stops, *([-1] * (MAX_STOPS - len(c.stops))))
    return (
        c.frequency,
        c.presence,
        c.repetition,
        c.length_penalty,
        c.length_start,
        c.length_window,
        c.think_bias,
        c.think_start,
        c.think_window,
        c.think_end,
        len(c.stops),
        stops,
        0,
    )


def picks_shape(wanted: int, top: int) -> tuple[int, int]:
    """Return the shape of a picks buffer, int32 words [1 + wanted, 2 top + 4].

    Row 0 is a header: word 0 is 1 if every hidden row and logit was finite, else 0.
    Row 1 + i belongs to wanted row i: top ids, then as float32 bits top logits, the log-sum-exp,
    the entropy in nats, the probe's logit (0 without a probe), and a pad word.
    """
    return 1 + wanted, 2 * top + 4


@dataclass(frozen=True)
class Picks:
    """What a pass returns for its wanted rows, all after the response controls.

    ids [W, top] int32 by falling logit (ties: lower id), logits [W, top] float32,
    lse, entropy, probe [W] float32; finite is the guard of the whole pass.
    """

    finite: bool
    ids: Array
    logits: Array
    lse: Array
    entropy: Array
    probe: Array

    @staticmethod
    def decode(words: Array, wanted: int, top: int) -> Picks:
        """Read int32 words [1 + capacity, 2 top + 4]."""
        rows = words[1 : 1 + wanted]
        floats = np.ascontiguousarray(rows[:, top:]).view(np.float32)
        return Picks(
            finite=bool(words[0, 0]),
            ids=rows[:, :top],
            logits=floats[:, :top],
            lse=floats[:, top],
            entropy=floats[:, top + 1],
            probe=floats[:, top + 2],
        )

    def encode(self, words: Array) -> None:
        """Write this into int32 words [1 + capacity, 2 top + 4], live rows only."""
        n, top = self.ids.shape
        words[0] = 0
        words[0, 0] = int(self.finite)
        words[1 : 1 + n, :top] = self.ids
        floats = np.zeros((n, top + 4), np.float32)
        floats[:, :top] = self.logits
        floats[:, top] = self.lse
        floats[:, top + 1] = self.entropy
        floats[:, top + 2] = self.probe
        words[1 : 1 + n, top:] = floats.view(np.int32)
