"""A card's driver through torch: one stream, recorded graphs, copies that do not wait.

Everything of a device runs in order on its own stream, so nothing but the end of a pass is waited
for. torch names the same calls `cuda` on cards of both vendors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import cuda

from clover_rt.backend import Memory

Bytes = npt.NDArray[np.uint8]


class Card:
    """The stream of a card and what can be asked of it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = cuda.Stream(device)

    def ordered(self) -> AbstractContextManager[Any]:
        """Return a context whose launches and copies go to the stream."""
        return cuda.stream(self.stream)

    def wait(self) -> None:
        """Wait for all that was submitted."""
        self.stream.synchronize()

    def settle(self) -> None:
        """Wait for all that the card was given, on any stream."""
        cuda.synchronize(self.device)

    def memory(self) -> Memory:
        """Return the card's memory; free is also what torch keeps and nobody has."""
        free, total = cuda.mem_get_info(self.device)
        kept = cuda.memory_reserved(self.device) - cuda.memory_allocated(self.device)
        return Memory(total, free + kept)

    def release(self) -> None:
        """Give back the memory that torch keeps and nobody has."""
        cuda.empty_cache()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return what `run` launches as one submission; nothing of it runs now."""
        graph = cuda.CUDAGraph()
        with self.ordered():
            # other threads of a program may use the card meanwhile
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                # the stream records until it is told to stop, which then fails too
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> None:
            with self.ordered():
                graph.replay()

        return replay


class Outbox:
    """Bytes on their way to a card, in memory that it reads by itself, so that nobody waits.

    Bytes are only replaced when the card has them; a pass is over by then.
    """

    def __init__(self, card: Card, nbytes: int) -> None:
        self.card = card
        self.pinned = torch.zeros(nbytes, dtype=torch.uint8).pin_memory()
        self.gone: Any = None

    def send(self, target: torch.Tensor, source: Bytes) -> None:
        """Copy bytes to as many of the card."""
        if self.gone is not None and not self.gone.query():
            self.gone.synchronize()
        part = self.pinned[: source.size]
        part.numpy()[:] = source
        with self.card.ordered():
            target.copy_(part, non_blocking=True)
            self.gone = self.card.stream.record_event()
