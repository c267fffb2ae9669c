"""Progress of loading and prefill on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

BAR_AFTER_S = 0.3
LINE_AFTER_S = 2.0


class Progress:
    """Shows (done, total) of one phase after the other; shows nothing of a phase that is quick.

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
        self._phase = ""
        self._since = 0.0
        self._bar: Bar | None = None

    def load(self, done: int, total: int, what: str) -> None:
        """Tell that `done` of `total` weights are prepared, or kernels compiled."""
        self._show("compiling" if what.startswith("compiling") else "loading", done, total)

    def prefill(self, done: int, total: int) -> None:
        """Tell that `done` of `total` prompt tokens are committed."""
        self._show("reading the prompt", done, total)

    def stored(self, done: int, total: int, what: str) -> None:
        """Tell that `done` of `total` bytes of a checkpoint went through a phase."""
        self._show(what, done, total, _gigabytes)

    def stop(self) -> None:
        """Remove the bar: something else is about to be printed."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._phase = None, ""

    def _show(self, phase: str, done: int, total: int, spelled: Callable[[int], str] = str) -> None:
        if self._quiet:
            return
        now = self._clock()
        if phase != self._phase:
            self.stop()
            self._phase, self._since = phase, now
        if done >= total:
            self.stop()
        elif self._stream.isatty():
            if self._bar is None and now - self._since >= BAR_AFTER_S:
                self._bar = Bar(self._stream, phase)
            if self._bar is not None:
                self._bar.update(done, total)
        elif now - self._since >= LINE_AFTER_S:
            told = f"{phase}: {spelled(done)} of {spelled(total)}"
            print(told, file=self._stream, flush=True)
            self._since = now


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"


class Bar:
    """A rich progress bar that vanishes when it is closed."""

    def __init__(self, stream: TextIO, phase: str) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        # refreshed by hand: no thread beside the one that loads
        self._bar = RichProgress(
            console=Console(file=stream, force_terminal=True), transient=True, auto_refresh=False
        )
        self._task = self._bar.add_task(phase, total=None)
        self._bar.start()

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.stop()
