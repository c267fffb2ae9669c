"""Parsing of the command line: errors as CloverErrors that name the nearest, and value types."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from clover_rt.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# the first of clover_rt.builtin.NAMES, which help must not import for
DEFAULT_MODEL = "clover-tiny"
VERY_NEAR = 0.85
UNKNOWN = "unrecognized arguments: "
CHOICES = re.compile(r"invalid choice: (?P<value>.+?) \(choose from (?P<known>.+)\)$")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal; keeps lines that are laid out, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n  " in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser that raises BadInput (CRT-1001) and takes no abbreviated flags."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", HelpFormatter)
        super().__init__(**settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise BadInput(
            what="the command line cannot be understood",
            evidence=message,
            fix=f"{nearest(message, self)}{behind_dashes(message, self)}see `{self.prog} --help`",
            code="CRT-1001",
        )

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # argparse would pass over an output that takes no more
        file = sys.stdout if file is None else file
        file.write(message)
        sys.stdout.flush()


class Command(Parser):
    """The parser of one command: what it does not know is an error of that command."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"{UNKNOWN}{' '.join(unknown)}")
        return found, unknown


def nearest(message: str, parser: argparse.ArgumentParser) -> str:
    """Return "did you mean ...? " for a misspelled choice or flag in an argparse message, or ""."""
    found = CHOICES.search(message)
    if found:
        value = found["value"].strip("'\"")
        known = [name.strip(" '\"") for name in found["known"].split(",")]
    elif message.startswith(UNKNOWN):
        value = message.removeprefix(UNKNOWN).split()[0].split("=")[0]
        known = list(dict.fromkeys(flags(parser)))
    else:
        return ""
    # only where something is wrong: a run that parses does not pay for it
    import difflib

    close = difflib.get_close_matches(value, known, n=1)
    # two letters that changed places are often as near to another name
    close += difflib.get_close_matches(value, known, n=2, cutoff=VERY_NEAR)[1:]
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def behind_dashes(message: str, parser: argparse.ArgumentParser) -> str:
    """Return how to give a text that starts with a dash, where a message is about one, or ""."""
    free = [a for a in parser._actions if not a.option_strings and a.metavar == "PROMPT"]
    text = message.removeprefix(UNKNOWN)
    is_text = message.startswith(UNKNOWN) and re.match("-[^-]", text)
    if free and (is_text or "ignored explicit argument" in message):
        shown = shlex.quote(text) if is_text else "TEXT"
        return f"for a prompt that starts with a dash: {parser.prog} -- {shown}; "
    return ""


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the option strings of a parser and of its commands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from flags(command)


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    return _whole(text, 1)


def not_negative_int(text: str) -> int:
    """Parse an integer of at least 0, for argparse."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value


def fraction(text: str) -> float:
    """Parse a number in 0..1, for argparse."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in 0 to 1")
    return value


def not_negative(text: str) -> float:
    """Parse a finite number of at least 0, for argparse."""
    value = number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def named(text: str) -> str:
    """Parse a name that is not empty, for argparse."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


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
