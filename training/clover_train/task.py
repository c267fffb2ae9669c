"""What a kind of task is: arguments, phrasings, one right answer, a short true thought."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Args = tuple[Any, ...]


@dataclass(frozen=True)
class Sample:
    """A user's prompt, the only right answer to it, and a thought that leads there."""

    kind: str
    prompt: str
    answer: str
    thought: str


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    draw(rng) gives arguments; prompts(args) every phrasing; answer(args) the right answer to each
    of them; thought(args) a true sentence. share is the kind's weight in the mixture.
    has_arguments is false where there is nothing to hold out (the fixed answers);
    always_trained(args) is true for arguments that stay on the training side.
    """

    name: str
    share: float
    draw: Callable[[Random], Args]
    prompts: Callable[[Args], list[str]]
    answer: Callable[[Args], str]
    thought: Callable[[Args], str]
    has_arguments: bool = True
    always_trained: Callable[[Args], bool] = lambda args: False

    def is_held_out(self, args: Args) -> bool:
        """True for about one in ten of all argument tuples, whatever the phrasing."""
        if not self.has_arguments or self.always_trained(args):
            return False
        return zlib.crc32(repr((self.name, args)).encode()) % 10 == 0

    def sample(self, rng: Random, held_out: bool) -> Sample:
        """Draw arguments of the wanted side of the split, then a phrasing."""
        while True:
            args = self.draw(rng)
            if not self.has_arguments or self.is_held_out(args) == held_out:
                break
        prompt = rng.choice(self.prompts(args))
        return Sample(self.name, prompt, self.answer(args), self.thought(args))
