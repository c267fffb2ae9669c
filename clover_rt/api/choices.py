"""Names that a caller chooses from: unknown ones come back with the list and the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from clover_rt.errors import BadInput

E = TypeVar("E", bound=Enum)


def choice(name: str, value: str | E, kind: type[E]) -> E:
    """Return the member of an enum with this value, or that is this value.

    Raises BadInput (CRT-1018) with the list.
    """
    if isinstance(value, kind):
        return value
    known = [str(member.value) for member in kind]
    if value not in known:
        raise BadInput(
            what=f"{name} {value!r} was asked for",
            evidence=f"known: {', '.join(known)}",
            fix=f"{did_you_mean(str(value), known)}use one of these for {name}",
            code="CRT-1018",
        )
    return kind(value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...? " with the nearest known name, or ""."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
