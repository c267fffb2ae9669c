"""What `run --show` draws: a block after each pass, a draft and its verdict, as styled cells."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from clover_rt.api import PassEvent, RoundEvent

STEPS = ((0.95, "green"), (0.7, "yellow underline"), (0.0, "red reverse"))
"""Style by least confidence; without colour, underline and reverse are left to tell."""

NEW = "bold"
FAINT = "dim"
REJECTED = "dim strike"


@dataclass(frozen=True, slots=True)
class Cell:
    """A token, a mask or a sign between them; style is one of rich's."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture: a title above cells that fill lines."""

    title: str
    cells: tuple[Cell, ...]

    def lines(self, columns: int) -> list[list[Cell]]:
        """Return the title and the cells in lines of at most so many columns."""
        title = wrapped([Cell(self.title, FAINT)], columns)
        return [*title, *wrapped(self.cells, columns)]


class Vocabulary(Protocol):
    """What of a tokenizer is needed; special ids add nothing to the text."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    def bytes_of(self, id: int, /) -> bytes: ...


class Frames:
    """Makes the frames of a response's passes and rounds, in order.

    tokenizer  None where the checkpoint has none: ids are shown
    encoding   of the terminal: what it lacks is escaped
    """

    def __init__(self, tokenizer: Vocabulary | None, encoding: str) -> None:
        self._tokenizer = tokenizer
        self._encoding = encoding
        self._mask = Cell(" ▒▒" if can_show("▒", encoding) else " __", FAINT)
        self._silent = "·" if can_show("·", encoding) else "~"
        self._confidences: dict[int, float] = {}

    def of_pass(self, event: PassEvent) -> Iterator[Frame]:
        """Yield the block as a pass left it; ahead of its first pass also all its masks."""
        size = len(event.tokens)
        if event.index == 0:
            self._confidences.clear()
            yield Frame(f"block {event.block}: {size} masks", (self._mask,) * size)
        new = {f.row: f.confidence for f in event.fixed}
        self._confidences |= new
        cells = []
        for row, token in enumerate(event.tokens):
            if token is None:
                cells.append(self._mask)
            else:
                style = by_confidence(self._confidences[row])
                cells.append(self._token(token, f"{style} {NEW}" if row in new else style))
        yield Frame(
            f"block {event.block}, pass {event.index}: {len(new)} fixed, {event.masks_left} masked",
            tuple(cells),
        )

    def of_round(self, event: RoundEvent) -> Iterator[Frame]:
        """Yield a draft, then which of its rows were accepted and what was picked behind them."""
        # the first candidate is in the text already
        drafts = event.candidates[1:]
        if drafts:
            cells = tuple(self._token(t, FAINT) for t in drafts)
            yield Frame(f"round {event.index}: {len(drafts)} drafts", cells)
        good, bad = drafts[: event.accepted], drafts[event.accepted :]
        accepted = [
            self._token(t, by_confidence(p))
            for t, p in zip(good, event.probabilities, strict=False)
        ]
        rejected = [Cell(" | "), *(self._token(t, REJECTED) for t in bad)] if bad else []
        yield Frame(
            f"round {event.index}: {len(good)} of {len(drafts)} drafts accepted"
            f"{f' | {len(bad)} rejected' if bad else ''} > next token",
            (*accepted, *rejected, Cell(" > "), self._token(event.boundary, NEW)),
        )

    def _token(self, id: int, style: str) -> Cell:
        if self._tokenizer is None:
            return Cell(f" {id}", style)
        if id in self._tokenizer.special_ids:
            return Cell(self._silent, style)
        return Cell(visible(self._tokenizer.bytes_of(id), self._encoding), style)


def by_confidence(confidence: float) -> str:
    """Return the style of a confidence."""
    return next(style for least, style in STEPS if confidence >= least)


def visible(data: bytes, encoding: str) -> str:
    """Return a token's bytes as text that moves no cursor: a newline as a sign, others escaped.

    Escaped are control and format characters, what the terminal's encoding lacks, and bytes that
    are only a part of a character.
    """
    text = data.decode("utf-8", "backslashreplace").replace("\n", "↵")
    return "".join(c if can_show(c, encoding) else escaped(c) for c in text)


def can_show(char: str, encoding: str) -> bool:
    """Does a character stand for itself, and does the encoding have it?"""
    kind = unicodedata.category(char)
    if kind.startswith("C") or kind in ("Zl", "Zp"):
        return False
    try:
        char.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def escaped(char: str) -> str:
    """Return a character as an escape in ASCII."""
    return "\\n" if char == "↵" else char.encode("unicode_escape").decode()


def wrapped(cells: Iterable[Cell], columns: int) -> list[list[Cell]]:
    """Return cells in lines; one that is wider than a line is cut."""
    from rich.cells import cell_len, chop_cells

    lines: list[list[Cell]] = [[]]
    room = columns
    for cell in cells:
        for piece in chop_cells(cell.text, columns):
            width = cell_len(piece)
            if width > room:
                lines.append([])
                room = columns
            lines[-1].append(Cell(piece, cell.style))
            room -= width
    return lines
