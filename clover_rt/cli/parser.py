"""Parsing of the command line: errors as CloverErrors that name the nearest, and value types."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import NoReturn

from clover_rt.errors import BadInput

CHOICES = re.compile(r"invalid choice: (?P<value>.+?) \(choose from (?P<known>.+)\)$")


class Parser(argparse.ArgumentParser):
    """A parser that raises BadInput (CRT-1001) and takes no abbreviated flags."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise BadInput(
            what="the command line cannot be understood",
            evidence=message,
            fix=f"{nearest(message, self)}see `{self.prog} --help`",
            code="CRT-1001",
        )


def nearest(message: str, parser: argparse.ArgumentParser) -> str:
    """Return "did you mean ...? " for a misspelled choice or flag in an argparse message, or ""."""
    found = CHOICES.search(message)
    if found:
        value = found["value"].strip("'\"")
        known = [name.strip(" '\"") for name in found["known"].split(",")]
    elif message.startswith("unrecognized arguments: "):
        value = message.split(": ", 1)[1].split()[0].split("=")[0]
        known = list(dict.fromkeys(flags(parser)))
    else:
        return ""
    # only where something is wrong: a run that parses does not pay for it
    import difflib

    close = difflib.get_close_matches(value, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the option strings of a parser and of its commands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from flags(command)


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def fraction(text: str) -> float:
    """Parse a number in 0..1, for argparse."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in 0 to 1")
    return value


def number(text: str) -> float:
    """Parse a finite number, for argparse."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if value - value != 0:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def token_ids(text: str) -> tuple[int, ...]:
    """Parse a comma list of token ids, for argparse."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        wanted = "is not a comma list of token ids, such as 1,2,3"
        raise argparse.ArgumentTypeError(f"{text!r} {wanted}") from error
