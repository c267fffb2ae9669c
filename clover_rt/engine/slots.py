"""The pool of state slots: one a live sequence, and one a snapshot."""

from __future__ import annotations

from clover_rt.errors import OutOfMemory


class SlotPool:
    """Free slots by number, lowest first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = list(range(slots))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Return a free slot, or raise OutOfMemory."""
        if not self._free:
            raise OutOfMemory(
                what="one more sequence or snapshot was asked for",
                evidence=f"all {self.slots} slots are in use",
                fix="end a sequence, release a snapshot, or load with more slots",
                code="CRT-3211",
            )
        return self._free.pop(0)

    def give(self, slot: int) -> None:
        assert slot not in self._free, "a slot was given back twice"
        self._free.append(slot)
        self._free.sort()
