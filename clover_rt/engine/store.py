"""What sequences share: the runner, its slots and its pages."""

from __future__ import annotations

from clover_rt.engine.pages import PagePool
from clover_rt.engine.runner import Runner
from clover_rt.engine.slots import SlotPool


class Store:
    """The runner with the books of its slots and KV pages."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.slots = SlotPool(runner.slots)
        self.pages = PagePool(runner.pages)
