"""Whether the bias towards `</think>` applies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def is_prompt_closed(prompt: Sequence[int], open_id: int | None, close_id: int | None) -> bool:
    """Is the prompt's last think tag a closing one?

    Where the opening tag is not known, any closing tag in the prompt counts as the last tag.
    """
    tags = [i for i in prompt if i in (open_id, close_id)]
    return bool(tags) and tags[-1] == close_id


class ThinkState:
    """Open until `</think>` is counted in the response; closed from the start by the prompt."""

    def __init__(self, close_id: int, closed: bool) -> None:
        self.close_id = close_id
        self._open = close_id >= 0 and not closed

    def count(self, ids: Iterable[int]) -> None:
        """See counted response ids."""
        if self._open and self.close_id in ids:
            self._open = False

    def is_open(self, also: Iterable[int | None] = ()) -> bool:
        """Does the bias apply, with these ids (fixed in the block, or counted drafts) as well?"""
        return self._open and self.close_id not in also
