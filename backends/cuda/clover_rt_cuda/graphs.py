"""A pass as one submission: its programs compiled, run once on an empty table, then recorded.

A graph belongs to the steps of one table class and row bucket, which the plan captures together,
and to a bucket of prefixes, which the launches of attention depend on. All lengths lie in the table
of the pass, so that a graph serves its whole bucket. The least recently used graphs are dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from clover_rt_cuda.guard import Guard
from clover_rt_cuda.launch import CudaStep, Launch

if TYPE_CHECKING:
    from clover_rt.backend import Step
    from clover_rt_cuda.device import CudaDevice

MOST_GRAPHS = 32


class Graphs:
    """The recorded submissions of a device, as many as are kept."""

    def __init__(self, most: int = MOST_GRAPHS) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[Submission, int], Step] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, owner: Submission, bucket: int, make: Callable[[int], Step]) -> Step:
        """Return the graph of a bucket, made where it is not kept."""
        key = (owner, bucket)
        if key not in self._kept:
            self._kept[key] = make(bucket)
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def clear(self) -> None:
        self._kept.clear()


class Submission:
    """Steps that are submitted together; a call runs them once."""

    def __init__(self, device: CudaDevice, steps: CudaStep) -> None:
        self.device = device
        self.steps = steps
        self.bounds = steps.bounds
        self._launches: dict[int, tuple[Launch, ...]] = {}

    def __call__(self) -> None:
        device = self.device
        bucket = bisect_left(self.bounds, device.prefix)
        launches = self._compiled(bucket)
        run: Step = self.steps
        if device.has_graphs:
            run = device.graphs.get(self, bucket, self._recorded)
        device.submit(launches, run)

    def _compiled(self, bucket: int) -> tuple[Launch, ...]:
        """Return the launches of a bucket, ready to run."""
        if bucket not in self._launches:
            prefix = self.bounds[bucket] if bucket < len(self.bounds) else self.device.prefix
            launches = self.steps.launches(prefix)
            self.device.compile(launches)
            self._launches[bucket] = launches
        return self._launches[bucket]

    def _recorded(self, bucket: int) -> Step:
        device, launches = self.device, self._launches[bucket]

        def run() -> None:
            for launch in launches:
                launch()

        # the first launch of a program loads it, which must not happen while a graph is recorded
        with device.emptied():
            run()
        with Guard(device, "record", launches[0].sig):
            return device.card.record(run)
