"""Threads that share one step: numpy lets go of the interpreter in copies and products."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# starting a second thread costs about 50 us: the time of this many multiplications
WORTH_SPLITTING = 4_000_000


class Workers:
    """A pool of `count` threads, the caller's own among them; threads start with the first use."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        self._pool: ThreadPoolExecutor | None = None

    def run(self, job: Callable[[int], None], multiplications: float) -> None:
        """Call job(worker) for each worker 0 .. count - 1, or only job(0) for little work.

        A job takes its share from what the workers have in common; an error of any is raised
        after all have ended.
        """
        if self.count == 1 or multiplications < WORTH_SPLITTING:
            job(0)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, "clover-cpu")
        others = [self._pool.submit(job, i) for i in range(1, self.count)]
        try:
            job(0)
        finally:
            errors = [other.exception() for other in others]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads; a later `run` starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
