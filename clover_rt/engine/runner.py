"""What the engine drives: a device plan that runs one table of segments at a time."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from clover_rt.spec import Pass, Picks, StepLayout, TableClass


class Limits(Protocol):
    """How much a model takes: what a request is checked against, before or after binding.

    context        tokens that one sequence may commit
    vocab_size     rows of the head
    widest_draft   rows of a tape: the widest verify segment; 0 where there is no tape
    layout         capacities of the step table
    max_rows       rows that one pass can have
    """

    @property
    def context(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def widest_draft(self) -> int: ...
    @property
    def layout(self) -> StepLayout: ...
    @property
    def max_rows(self) -> int: ...

    def accepts(self, table: TableClass) -> bool:
        """Does this plan run tables of this class?"""
        ...


class Runner(Limits, Protocol):
    """A model bound to a device, with the state of `slots` sequences.

    slots          slots of conv ring, S, counts and page table
    pages          pages of PAGE_ROWS KV rows in the pool that the slots share
    row_invariant  a row's bits depend neither on the other rows nor on how rows are split
    """

    @property
    def slots(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def row_invariant(self) -> bool: ...

    def run(self, work: Pass, top: int) -> Picks:
        """Run one pass and return `top` candidates of each wanted row (1 greedy, 64 sampling)."""
        ...

    def reset_slot(self, slot: int) -> None:
        """Set conv ring, S and counts of a slot to zero."""
        ...

    def copy_slot(self, src: int, dst: int) -> None:
        """Copy conv ring, S and counts; KV pages, page table and suppressed ids stay."""
        ...

    def load_request(
        self, slot: int, counts: npt.NDArray[np.int32], suppressed: npt.NDArray[np.bool_]
    ) -> None:
        """Load counts [vocab] and suppressed ids [vocab] of the request that starts in a slot."""
        ...

    def load_counts(self, slot: int, counts: npt.NDArray[np.int32]) -> None:
        """Load response counts [vocab] of a slot."""
        ...

    def explain_nonfinite(self, work: Pass, top: int) -> str:
        """Run a pass step by step until a step's output is not finite; name layer and op.

        A commit advances its slot as `run` does. Returns "" where everything is finite.
        """
        ...
