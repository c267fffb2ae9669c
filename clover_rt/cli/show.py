"""The drawing of `run --show`: below the text on a terminal, gone before more text is printed.

The cursor rests where the text ends. A frame is drawn in one write: scroll until there is room
below, remember the cursor, draw, and go back. Erasing everything behind the cursor removes it, so
that neither a changed window nor a character of unknown width leaves a trace, and no state of the
terminal has to be restored when a run is broken off.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from clover_rt.cli.frames import Cell, Frame, Frames, Vocabulary

if TYPE_CHECKING:
    from clover_rt.api import AnyEvent

FRAME_S = 0.2
"""What a frame stays at least: a pass of a small model is too quick for the eye."""

LEAST_COLUMNS = 8
NO_CURSOR = ("", "dumb", "unknown")
TAB = 8

CUT, WRAP = "\x1b[?7l", "\x1b[?7h"
# wrapping too, for a frame that was broken off
ERASE = WRAP + "\x1b[J"
LINE_BELOW = "\x1bD"
UP = "\x1b[{}A"
REMEMBER, RETURN = "\x1b7", "\x1b8"
NEXT_LINE = "\r\x1b[B"


def can_draw(out: TextIO, err: TextIO) -> bool:
    """Are both streams terminals, of a kind whose cursor can be moved?"""
    return out.isatty() and err.isatty() and os.environ.get("TERM", "") not in NO_CURSOR


def terminal_size() -> tuple[int, int]:
    """Return columns and lines of stderr's terminal; 80 and 24 where it does not tell them."""
    columns, lines = os.get_terminal_size(sys.stderr.fileno())
    return columns or 80, lines or 24


class Show:
    """Draws passes and rounds on `err`, and prints text on `out` when the drawing is gone."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        tokenizer: Vocabulary | None,
        size: Callable[[], tuple[int, int]] = terminal_size,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        from rich.console import Console

        self._out = out
        self._err = err
        self._frames = Frames(tokenizer, err.encoding or "ascii")
        # only makes styles of names: it knows what colours the terminal has, and NO_COLOR
        self._console = Console(file=err, force_terminal=True)
        self._size = size
        self._clock = clock
        self._sleep = sleep
        self._is_up = False
        self._since = 0.0
        self._held: list[str] = []
        self._line = ""
        self._is_wrapped = False

    def see(self, event: AnyEvent) -> None:
        """Draw what an event tells; remove the drawing where a block, or the response, is over."""
        from clover_rt.api import BlockEvent, EndEvent, PassEvent, RoundEvent

        if isinstance(event, BlockEvent | RoundEvent | EndEvent):
            self._wait()
            self.close()
        if isinstance(event, PassEvent):
            for frame in self._frames.of_pass(event):
                self._draw(frame)
        elif isinstance(event, RoundEvent):
            for frame in self._frames.of_round(event):
                self._draw(frame)

    def write(self, text: str) -> None:
        """Print text, once no drawing is in the way."""
        self._held.append(text)
        if not self._is_up:
            self.close()

    def close(self) -> None:
        """Remove the drawing and print the text that waited for that."""
        if self._is_up:
            self._tell(ERASE)
            self._is_up = False
        text, self._held = "".join(self._held), []
        if text:
            if self._is_wrapped and text.startswith("\n"):
                # that line is ended by the text, not by its length
                self._tell(UP.format(1))
            self._is_wrapped = False
            self._out.write(text)
            self._out.flush()
            self._line = (self._line + text).rpartition("\n")[2]

    def _draw(self, frame: Frame) -> None:
        self._wait()
        columns, height = self._size()
        # the end of the text stays in view, with the line before
        lines = frame.lines(columns)[: max(height - 2, 0)] if columns >= LEAST_COLUMNS else []
        if lines:
            start = ERASE if self._is_up else ""
            if column(self._line, columns) == columns and not self._is_wrapped:
                # behind a full line a terminal has not yet gone to the next one: make it go
                start += " \b"
                self._is_wrapped = True
            room = LINE_BELOW * len(lines) + UP.format(len(lines))
            drawn = "".join(NEXT_LINE + self._styled(line) for line in lines)
            # before it is: what is broken off in the middle has to be removed too
            self._is_up = True
            self._tell(f"{start}{room}{REMEMBER}{CUT}{drawn}{WRAP}{RETURN}")
            self._since = self._clock()

    def _styled(self, line: list[Cell]) -> str:
        from rich.text import Text

        with self._console.capture() as drawn:
            text = Text.assemble(*((cell.text, cell.style) for cell in line))
            self._console.print(text, end="", soft_wrap=True)
        return drawn.get()

    def _wait(self) -> None:
        """Leave a drawing where it is until it was seen."""
        left = self._since + FRAME_S - self._clock()
        if self._is_up and left > 0:
            self._sleep(left)

    def _tell(self, codes: str) -> None:
        self._err.write(codes)
        self._err.flush()


def column(line: str, columns: int) -> int:
    """Return where the cursor is behind a line; `columns`: at its end, about to wrap."""
    from rich.cells import cell_len

    at = 0
    for char in line:
        if char == "\t":
            # behind a full line a tab goes nowhere
            at = at if at == columns else min(at // TAB * TAB + TAB, columns - 1)
            continue
        width = cell_len(char)
        at = at + width if at + width <= columns else width
    return at
