"""Typed reading of a JSON object; every problem of a file is collected into one error."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from clover_rt.errors import BadCheckpoint

MAX_INT = 2**31 - 1
MISSING, TYPE, RANGE, UNSUPPORTED, CONTRADICTION = (
    "CRT-1121",
    "CRT-1122",
    "CRT-1123",
    "CRT-1124",
    "CRT-1125",
)
SEVERAL = "CRT-1120"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a file: its code, the field with its value, the remedy."""

    code: str
    text: str
    fix: str


class Fields:
    """The fields of one file, looked up in several objects in order; null counts as absent.

    source   the file's name, for messages
    objects  where a key is looked up: the first that has it wins
    """

    def __init__(self, source: str, *objects: Mapping[str, Any]) -> None:
        self.source = source
        self.objects = objects
        self.problems: list[Problem] = []
        self._bad: set[str] = set()

    def raw(self, key: str) -> Any:
        """Return the first value of a key that is not null, or None."""
        for fields in self.objects:
            value = fields.get(key)
            if value is not None:
                return value
        return None

    def ok(self, *keys: str) -> bool:
        """Were all of these read without a problem?"""
        return self._bad.isdisjoint(keys)

    def problem(self, code: str, text: str, fix: str, *keys: str) -> None:
        """Note a problem, and that these keys cannot be trusted in later checks."""
        self.problems.append(Problem(code, text, fix))
        self._bad.update(keys)

    def integer(
        self, key: str, default: int | None = None, low: int = 1, high: int = MAX_INT
    ) -> int:
        """Return a whole number in low..high; without a default the field is required."""
        value = self.raw(key)
        if value is None:
            return self._absent(key, default, low)
        if isinstance(value, bool) or not isinstance(value, int):
            return self._wrong_type(key, value, "a whole number", low)
        if not low <= value <= high:
            return self._out_of_range(key, value, f"{low} to {high}", low)
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        low: float = -math.inf,
        high: float = math.inf,
        *,
        above: float | None = None,
    ) -> float:
        """Return a finite number in low..high and greater than `above`."""
        value = self.raw(key)
        if value is None:
            return self._absent(key, default, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._wrong_type(key, value, "a number", 1.0)
        # whole numbers of any length are legal JSON; float() refuses those past its range
        number = float(value) if abs(value) <= 1e300 else math.inf
        if not math.isfinite(number) or not low <= number <= high:
            return self._out_of_range(key, value, _span(low, high, above), 1.0)
        if above is not None and number <= above:
            return self._out_of_range(key, value, _span(low, high, above), 1.0)
        return number

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            return self._wrong_type(key, value, "true or false", default)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default the field is required."""
        value = self.raw(key)
        if value is None:
            return self._absent(key, default, "")
        if not isinstance(value, str):
            return self._wrong_type(key, value, "a string", "")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        """Return a nested object, empty where the key is absent."""
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            return self._wrong_type(key, value, "an object", {})
        return value

    def ids(self, key: str, vocab: int) -> tuple[int, ...] | None:
        """Return a token id or list of ids below `vocab` as a tuple; None where it is absent."""
        value = self.raw(key)
        if value is None:
            return None
        entries = value if isinstance(value, list) else [value]
        for entry in entries:
            if isinstance(entry, bool) or not isinstance(entry, int):
                return self._wrong_type(key, value, "a token id or a list of token ids", ())
            if not 0 <= entry < vocab:
                note = f"token ids from 0 to {vocab - 1} (vocab_size {vocab})"
                return self._out_of_range(key, value, note, ())
        return tuple(entries)

    def expect(self, key: str, value: Any, wanted: Any, why: str) -> None:
        """Note a problem unless a field has the one value that the model can be run with."""
        if self.ok(key) and value != wanted:
            self.problem(
                UNSUPPORTED,
                f"{key} = {_show(value)}: only {_show(wanted)} is supported",
                why,
                key,
            )

    def finish(self, what: str) -> None:
        """Raise one BadCheckpoint with every problem; return if there is none.

        The error's code is the problem's own, or CRT-1120 where problems of several codes meet.
        """
        if not self.problems:
            return
        codes = {p.code for p in self.problems}
        lines = [p.text if len(codes) == 1 else f"{p.text} [{p.code}]" for p in self.problems]
        count = len(lines)
        head = lines[0] if count == 1 else f"{count} problems\n    " + "\n    ".join(lines)
        fixes = dict.fromkeys(p.fix for p in self.problems)
        raise BadCheckpoint(
            what=what,
            evidence=f"{self.source}: {head}",
            fix="; ".join(fixes),
            code=codes.pop() if len(codes) == 1 else SEVERAL,
        )

    def _absent(self, key: str, default: T | None, placeholder: T) -> T:
        if default is not None:
            return default
        present = {k for fields in self.objects for k in fields if isinstance(k, str)}
        close = difflib.get_close_matches(key, sorted(present - {key}), n=1, cutoff=0.8)
        hint = f" (it has {close[0]!r}, which is spelled alike)" if close else ""
        self.problem(
            MISSING,
            f"{key} is missing{hint}",
            f"add the field to {self.source}, or download the file again",
            key,
        )
        return placeholder

    def _wrong_type(self, key: str, value: Any, wanted: str, placeholder: T) -> T:
        fix = f"correct the value in {self.source}"
        self.problem(TYPE, f"{key} = {_show(value)} is not {wanted}", fix, key)
        return placeholder

    def _out_of_range(self, key: str, value: Any, wanted: str, placeholder: T) -> T:
        fix = f"correct the value in {self.source}"
        self.problem(RANGE, f"{key} = {_show(value)} is out of range: {wanted}", fix, key)
        return placeholder


def _span(low: float, high: float, above: float | None) -> str:
    least = f"above {above:g}" if above is not None else f"at least {low:g}"
    parts = [] if above is None and low == -math.inf else [least]
    if high != math.inf:
        parts.append(f"at most {high:g}")
    return " and ".join(["a finite number", *parts])


def _show(value: Any) -> str:
    """Return a value as JSON would spell it, cut to a line."""
    names = {True: "true", False: "false"}
    if isinstance(value, bool):
        return names[value]
    if isinstance(value, int) and abs(value) > 10**30:
        return "a number of more than 30 digits"
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
