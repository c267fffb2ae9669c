"""A terminal as a grid: what a reader sees of text with cursor movements, and programs run on one.

Only movements that clover-rt may use are known; anything else fails the test that fed it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import unicodedata
from collections.abc import Callable

CONTROL = re.compile(r"\x1b\[\?7([hl])|\x1b\[(\d*)([ABJm])|\x1b\[((?:\d+;)*\d+)m|\x1b([D78])")


class Grid:
    """A screen of characters with a cursor; the right half of a wide character is "".

    As a VT100, it wraps when a character comes behind a full line, not before: `pending`.
    """

    def __init__(self, columns: int = 80, height: int = 24) -> None:
        self.columns = columns
        self.height = height
        self.rows = [self._blank() for _ in range(height)]
        self.scrolled: list[list[str]] = []
        self.row = self.column = 0
        self.pending = False
        self.wraps = True
        self._saved = (0, 0, False)

    def feed(self, text: str) -> None:
        """Take text as a program writes it on a terminal that adds the return to a newline."""
        at = 0
        while at < len(text):
            found = CONTROL.match(text, at)
            if found:
                self._control(found)
                at = found.end()
            else:
                self._char(text[at])
                at += 1

    def lines(self) -> list[str]:
        """Return what is shown, with what has scrolled away, without blanks at the ends."""
        shown = ["".join(row).rstrip() for row in (*self.scrolled, *self.rows)]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def _blank(self) -> list[str]:
        return [" "] * self.columns

    def _char(self, char: str) -> None:
        if char == "\n":
            self.column, self.pending = 0, False
            self._down()
        elif char == "\r":
            self.column, self.pending = 0, False
        elif char == "\b":
            self.column, self.pending = max(self.column - 1, 0), False
        elif char == "\t":
            # behind a full line it goes nowhere, and the next character wraps as ever
            self.column = min(self.column // 8 * 8 + 8, self.columns - 1)
        else:
            assert unicodedata.category(char)[0] != "C", f"{char!r} reached the terminal"
            if not unicodedata.combining(char):
                self._print(char, 2 if unicodedata.east_asian_width(char) in "WF" else 1)

    def _print(self, char: str, width: int) -> None:
        if self.wraps and (self.pending or self.column + width > self.columns):
            self.column, self.pending = 0, False
            self._down()
        self.column = min(self.column, self.columns - width)
        self.rows[self.row][self.column : self.column + width] = [char, *[""] * (width - 1)]
        self.column += width
        if self.column == self.columns:
            self.column, self.pending = self.columns - 1, True

    def _down(self) -> None:
        if self.row < self.height - 1:
            self.row += 1
        else:
            self.scrolled.append(self.rows.pop(0))
            self.rows.append(self._blank())

    def _control(self, found: re.Match[str]) -> None:
        wrap, count, letter, _, escape = found.groups()
        if wrap:
            self.wraps = wrap == "h"
        elif letter == "A":
            self.row, self.pending = max(self.row - int(count or 1), 0), False
        elif letter == "B":
            self.row, self.pending = min(self.row + int(count or 1), self.height - 1), False
        elif letter == "J":
            assert count in ("", "0")
            self.rows[self.row][self.column :] = [" "] * (self.columns - self.column)
            for row in range(self.row + 1, self.height):
                self.rows[row] = self._blank()
        elif escape == "D":
            self.pending = False
            self._down()
        elif escape == "7":
            self._saved = (self.row, self.column, self.pending)
        elif escape == "8":
            self.row, self.column, self.pending = self._saved


class Terminal:
    """A pseudo-terminal: `slave` is for a program, `read` gives what it has written."""

    def __init__(self, columns: int = 80, height: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))

    def read(
        self, process: subprocess.Popen, seen: Callable[[str], None] = lambda text: None
    ) -> str:
        """Return all that comes until the program ends; `seen` gets the whole at every piece."""
        os.close(self.slave)
        data = b""
        while True:
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                # Linux tells like this that no program has the terminal any more
                break
            if not piece:
                break
            data += piece
            seen(data.decode("utf-8", "replace"))
        process.wait()
        os.close(self.master)
        return data.decode()
