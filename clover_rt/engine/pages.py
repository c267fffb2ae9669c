"""The pool of KV pages that all sequences share."""

from __future__ import annotations

from clover_rt.errors import OutOfMemory
from clover_rt.spec import PAGE_ROWS


def pages_for(rows: int) -> int:
    """Return how many pages hold this many rows."""
    return -(-rows // PAGE_ROWS)


class PagePool:
    """Free pages by number. A run promises itself its worst case, so that it never starves."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages - 1, -1, -1))
        self.promised = 0

    @property
    def free(self) -> int:
        """Pages that nobody holds, promised ones included."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Pages that can still be promised."""
        return len(self._free) - self.promised

    def promise(self, count: int) -> None:
        """Set pages aside; raises OutOfMemory with both numbers."""
        if count > self.available:
            raise OutOfMemory(
                what=f"a run that needs {count} more KV pages was asked for",
                evidence=f"{self.available} of {self.pages} pages of {PAGE_ROWS} rows are free",
                fix="lower max_new_tokens, end another sequence, or load with a larger context",
                code="CRT-3210",
            )
        self.promised += count

    def forget(self, count: int) -> None:
        """Give a promise back."""
        assert count <= self.promised
        self.promised -= count

    def take(self) -> int:
        """Return a free page that was promised before."""
        assert self.promised > 0 and self._free, "a page is taken only against a promise"
        self.promised -= 1
        return self._free.pop()

    def give(self, pages: list[int]) -> None:
        """Put pages back."""
        assert not set(pages) & set(self._free), "a page was given back twice"
        self._free.extend(reversed(pages))
