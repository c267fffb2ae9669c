"""Token ids to text as they come: append-only, valid Unicode, cut at stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from clover_rt.errors import BadInput
from clover_rt.text.tokenizer import Tokenizer


class StopStrings:
    """Cuts text at the first stop string that completes, across any chunking.

    The stop that ends first wins, the longest of those that end together; neither it nor any part
    of it is released. Text that only looked like the start of one is released when it no longer
    can be.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        """Raises BadInput (CRT-1072) for an empty stop string."""
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise BadInput(
                what="a stop string was given",
                evidence="it is empty, so it would stop before the first character",
                fix="give at least one character, or leave it out",
                code="CRT-1072",
            )
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> str:
        """Return what of the text so far can be released; nothing once stopped."""
        if self.stopped is not None:
            return ""
        text = self._held + text
        hits = [(at + len(s), at, s) for s in self._stops if (at := text.find(s)) >= 0]
        if hits:
            _, start, self.stopped = min(hits)
            self._held = ""
            return text[:start]
        keep = self._prefix_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back: no more text follows."""
        text, self._held = self._held, ""
        return text

    def _prefix_length(self, text: str) -> int:
        """Return the length of the longest suffix that is a proper prefix of a stop."""
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-n:]
            if any(len(s) > n and s.startswith(tail) for s in self._stops):
                return n
        return 0


class Stream:
    """Turns one response's ids into text deltas whose concatenation is the whole text.

    Special tokens, the mask and `hidden` ids (the stop ids) add no text; `</think>` and other
    control tokens that are not special do. An incomplete UTF-8 sequence is held until it is
    complete, and becomes U+FFFD at the end.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Iterable[str] = (),
        hidden: Iterable[int] = (),
    ) -> None:
        """Raises BadInput (CRT-1072) for an empty stop string."""
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids | frozenset(hidden)
        self._stops = StopStrings(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.stopped

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that these ids add; may be empty. Nothing once stopped."""
        hidden, bytes_of = self._hidden, self._tokenizer.bytes_of
        data = b"".join([bytes_of(id) for id in ids if id not in hidden])
        return self._stops.feed(self._decoder.decode(data))

    def flush(self) -> str:
        """Return what was held back: no more ids follow."""
        text = self._stops.feed(self._decoder.decode(b"", True))
        return text if self.stopped is not None else text + self._stops.flush()
