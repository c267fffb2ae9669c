"""What a decoding mode asks of one pass, before slots, rows and pages are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from clover_rt.spec import Kind, Picks


@dataclass(frozen=True, slots=True)
class Ask:
    """A row of a part whose logits are wanted; fields as in `clover_rt.spec.Wanted`."""

    row: int
    response: int
    think_open: bool = False
    count_from: int = -1
    probe: int = -1


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of one sequence."""

    kind: Kind
    tokens: tuple[int, ...]
    asks: tuple[Ask, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """One pass of one sequence: one part, or a commit followed by a preview.

    counted  response ids that count as committed from this pass on
    top      candidates returned of each asked row
    """

    parts: tuple[Part, ...]
    counted: tuple[int, ...] = ()
    top: int = 1

    @property
    def rows(self) -> int:
        return sum(len(p.tokens) for p in self.parts)

    @property
    def asks(self) -> int:
        return sum(len(p.asks) for p in self.parts)

    @property
    def stored_rows(self) -> int:
        """Rows whose K and V are written: those of commit and verify."""
        return sum(len(p.tokens) for p in self.parts if p.kind is not Kind.PREVIEW)


@dataclass(frozen=True, slots=True)
class Answer:
    """The picks of this work's asked rows, in order, and the time of the pass."""

    picks: Picks
    ms: float
