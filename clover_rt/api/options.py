"""What can be asked of one response: the options, their defaults, and a check of their kinds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypedDict

from clover_rt.api.choices import did_you_mean
from clover_rt.engine import Accept, Mode
from clover_rt.errors import BadInput


class Options(TypedDict, total=False):
    """Options of one response; `Model.generate` says what each does."""

    mode: str | Mode | None
    raw: bool
    system: str | None
    think: bool | None
    max_new_tokens: int | None
    threshold: float | None
    block_size: int | None
    accept: str | Accept | None
    draft_width: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    controls: bool
    ignore_eos: bool
    early_end: bool | None


MAX_NEW_TOKENS = 256
"""Of a response whose length nobody asked for, or less where the context leaves less."""
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"raw": False, "stop": (), "controls": True, "ignore_eos": False}
)
"""What is not here is None where it is not given."""


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("True or False")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError("a whole number")
    try:
        # numpy's integers too
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError("a whole number") from None


def _number(value: object) -> float:
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError("a number")
    try:
        return float(value)
    except TypeError:
        raise TypeError("a number") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a string")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
        raise TypeError("a string, or a list of strings")
    return tuple(value)


def _name(kind: type[Mode | Accept]) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, str | kind):
            raise TypeError("a name")
        return value

    return check


KINDS: Mapping[str, Callable[[object], object]] = MappingProxyType(
    {
        "mode": _name(Mode),
        "raw": _truth,
        "system": _text,
        "think": _truth,
        "max_new_tokens": _whole,
        "threshold": _number,
        "block_size": _whole,
        "accept": _name(Accept),
        "draft_width": _whole,
        "temperature": _number,
        "top_k": _whole,
        "top_p": _number,
        "seed": _whole,
        "stop": _texts,
        "controls": _truth,
        "ignore_eos": _truth,
        "early_end": _truth,
    }
)
"""Option -> what returns its value as a plain type, or raises TypeError with what is wanted."""


def filled(options: Options) -> dict[str, Any]:
    """Return every option, with defaults where it is not given and values of plain types.

    `stop` becomes a tuple; a plain string is one stop. Raises BadInput: CRT-1028 a value of a wrong
    kind, CRT-1029 an option that there is not.
    """
    for name in options:
        if name not in KINDS:
            raise BadInput(
                what=f"the option {name} was given",
                evidence=f"known: {', '.join(KINDS)}",
                fix=f"{did_you_mean(name, KINDS)}use one of these",
                code="CRT-1029",
            )
    return {name: _plain(name, options.get(name)) for name in KINDS if name in options} | {
        name: DEFAULTS.get(name) for name in KINDS if name not in options
    }


def _plain(name: str, value: object) -> object:
    if value is None and name not in DEFAULTS:
        return None
    try:
        return KINDS[name](value)
    except TypeError as error:
        raise BadInput(
            what=f"{name}={value!r} was given",
            evidence=f"it is a {type(value).__name__}; wanted is {error}",
            fix=f"give {error} for {name}, or leave it out",
            code="CRT-1028",
        ) from error
