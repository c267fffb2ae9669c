"""Ctrl-C and SIGTERM while a response runs: the first ends it after the pass, a second at once.

While kernels are compiled, which may take minutes, the first one ends it at once too: Python hears
of a signal between two of them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""Exit codes by signal: 128 and its number, as shells have it."""


class Interrupted(KeyboardInterrupt):
    """The end of a run that does not wait for its pass.

    exit_code  of the signal that came first
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


class Interrupts:
    """A context in which the first SIGINT or SIGTERM calls `cancel`; a later one interrupts.

    is_compiling  a signal that comes while it answers True interrupts too
    received      the signal that came, or None
    In another thread than the main one no signal arrives, and this does nothing.
    """

    def __init__(self, cancel: Callable[[], None], is_compiling: Callable[[], bool]) -> None:
        self._cancel = cancel
        self._is_compiling = is_compiling
        self._before: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in CODES}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """Return 0, or the code of the signal that came."""
        return CODES[self.received] if self.received is not None else 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self.received is not None
        self.received = self.received or signal.Signals(number)
        if is_second or self._is_compiling():
            raise Interrupted(self.exit_code)
        self._cancel()
