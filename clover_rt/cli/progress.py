"""Progress of loading and prefill on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

BAR_AFTER_S = 0.3
LINE_AFTER_S = 2.0
COMPILING = "compiling"
PHASES = {"compiling": COMPILING, "comparing": "comparing with the cpu"}
"""Phases of a load by the first word of what is told of them; the others prepare weights."""


class Progress:
    """Shows (done, total) of phases, one after the other or one in the other; none that is quick.

    A bar (rich) appears on a terminal after 0.3 s; elsewhere a plain line every 2 s.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        # when each phase that is not over began, or had its last line
        self._since: dict[str, float] = {}
        self._bar: Bar | None = None

    @property
    def is_compiling(self) -> bool:
        """Are kernels being compiled?"""
        return COMPILING in self._since

    def load(self, done: int, total: int, what: str) -> None:
        """Tell that `done` of `total` weights are prepared, kernels compiled, or steps compared."""
        self._show(PHASES.get(what.partition(" ")[0], "loading"), done, total)

    def prefill(self, done: int, total: int) -> None:
        """Tell that `done` of `total` prompt tokens are committed."""
        self._show("reading the prompt", done, total)

    def stored(self, done: int, total: int, what: str) -> None:
        """Tell that `done` of `total` bytes of a checkpoint went through a phase."""
        self._show(what, done, total, _gigabytes)

    def note(self, line: str) -> None:
        """Print a line; a bar makes room for it."""
        self.stop()
        print(line, file=self._stream, flush=True)

    def stop(self) -> None:
        """Remove the bar: something else is about to be printed."""
        self._since.clear()
        self._close()

    def _show(self, phase: str, done: int, total: int, spelled: Callable[[int], str] = str) -> None:
        now = self._clock()
        if done >= total:
            self._since.pop(phase, None)
            if self._bar is not None and self._bar.phase == phase:
                self._close()
            return
        late = now - self._since.setdefault(phase, now)
        if self._quiet:
            return
        if self._stream.isatty():
            if late >= BAR_AFTER_S and (self._bar is None or self._bar.phase != phase):
                self._close()
                self._bar = Bar(self._stream, phase)
            if self._bar is not None and self._bar.phase == phase:
                self._bar.update(done, total)
        elif late >= LINE_AFTER_S:
            told = f"{phase}: {spelled(done)} of {spelled(total)}"
            print(told, file=self._stream, flush=True)
            self._since[phase] = now

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"


class Bar:
    """A rich progress bar of one phase; it vanishes when it is closed."""

    def __init__(self, stream: TextIO, phase: str) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        # refreshed by hand: no thread beside the one that loads
        self._bar = RichProgress(
            console=Console(file=stream, force_terminal=True), transient=True, auto_refresh=False
        )
        self.phase = phase
        self._task = self._bar.add_task(phase, total=None)
        self._bar.start()

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.stop()
