"""Blocks: memory is taken from the driver in large pieces, which buffers share.

Drivers allow few allocations (4096 is common), and a model has more buffers than that.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BLOCK = 64 << 20


@dataclass(eq=False, slots=True)
class Block:
    """One allocation; `free` has (start, end) of its free pieces by their start."""

    memory: Any
    nbytes: int
    free: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes start .. end - 1 of a block."""

    block: Block
    start: int
    end: int


class Blocks:
    """Pieces of device memory, taken and given back.

    allocate  returns a driver's memory of so many bytes
    release   gives one back to the driver
    """

    def __init__(self, allocate: Callable[[int], Any], release: Callable[[Any], None]) -> None:
        self.blocks: list[Block] = []
        self.reserved = 0
        self._allocate = allocate
        self._release = release

    def take(self, nbytes: int, alignment: int) -> Place:
        """Return a place of this size; what is too large to share gets a block of its own."""
        if nbytes > BLOCK // 2:
            return self._place(self._new(nbytes), 0, 0, nbytes)
        for block in self.blocks:
            for i, (start, end) in enumerate(block.free):
                at = -(-start // alignment) * alignment
                if at + nbytes <= end:
                    return self._place(block, i, at, at + nbytes)
        return self._place(self._new(BLOCK), 0, 0, nbytes)

    def give(self, place: Place) -> None:
        """Take a place back, joined with its free neighbours; a block without users goes."""
        block, start, end = place.block, place.start, place.end
        for piece in [p for p in block.free if p[1] == start or p[0] == end]:
            block.free.remove(piece)
            start, end = min(start, piece[0]), max(end, piece[1])
        insort(block.free, (start, end))
        if (start, end) == (0, block.nbytes):
            self.blocks.remove(block)
            self.reserved -= block.nbytes
            self._release(block.memory)

    def close(self) -> None:
        """Give every block back."""
        for block in self.blocks:
            self._release(block.memory)
        self.blocks.clear()
        self.reserved = 0

    def _new(self, nbytes: int) -> Block:
        block = Block(self._allocate(nbytes), nbytes, [(0, nbytes)])
        self.blocks.append(block)
        self.reserved += nbytes
        return block

    def _place(self, block: Block, i: int, start: int, end: int) -> Place:
        free_start, free_end = block.free.pop(i)
        for piece in ((free_start, start), (end, free_end)):
            if piece[0] < piece[1]:
                insort(block.free, piece)
        return Place(block, start, end)
