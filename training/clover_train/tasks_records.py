"""Records: JSON, Markdown tables, CSV to sentences."""

from __future__ import annotations

import json
from random import Random

from clover_train.task import Args, Kind
from clover_train.words import CITIES, COLORS, PETS, distinct, name

FIELDS = ("age", "city", "color", "pet")
_VALUES = {"city": CITIES, "color": COLORS, "pet": PETS}
_CLAUSE = {
    "age": "is {} years old",
    "city": "lives in {}",
    "color": "likes {}",
    "pet": "has a {}",
}
_COUNT = ("no", "one", "two", "three", "four", "five", "six")


def _draw(rng: Random, most: int) -> Args:
    """Return (columns, row, row, ...); the first column is always the name."""
    columns = ("name", *rng.sample(FIELDS, rng.randint(1, 3)))
    count = min(rng.randint(1, most), rng.randint(1, most))
    rows = []
    for n in distinct(rng, lambda r: name(r, 0.06), count):
        cells = [rng.randint(1, 99) if c == "age" else rng.choice(_VALUES[c]) for c in columns[1:]]
        rows.append((n, *cells))
    return columns, *rows


def _csv(args: Args, sep: str = ",", end: str = "\n") -> str:
    return end.join(sep.join(map(str, line)) for line in args)


def _rows(args: Args) -> str:
    return _csv(args[1:], ", ", "; ")


def _pairs(args: Args) -> str:
    columns, rows = args[0], args[1:]
    return "; ".join(
        ", ".join(f"{c} {v}" for c, v in zip(columns, row, strict=True)) for row in rows
    )


def _json_prompts(args: Args) -> list[str]:
    head = ", ".join(args[0])
    return [
        f"Turn into JSON: {_pairs(args)}",
        f"Write as JSON: {_pairs(args)}",
        f"Make JSON from {_pairs(args)}.",
        f"Write these records as JSON with {head}: {_rows(args)}",
        f"Turn this CSV into JSON:\n{_csv(args)}",
        f"JSON: {_pairs(args)}",
    ]


def _json_answer(args: Args) -> str:
    columns, rows = args[0], args[1:]
    return json.dumps([dict(zip(columns, row, strict=True)) for row in rows])


def _table_prompts(args: Args) -> list[str]:
    head = ", ".join(args[0])
    return [
        f"Make a table with {head}: {_rows(args)}",
        f"Write a table with the columns {head}: {_rows(args)}",
        f"Turn this CSV into a table:\n{_csv(args)}",
        f"Make a Markdown table:\n{_csv(args)}",
    ]


def _table_answer(args: Args) -> str:
    lines = [args[0], ["---"] * len(args[0]), *args[1:]]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _sentence_prompts(args: Args) -> list[str]:
    head = ", ".join(args[0])
    return [
        f"Turn this CSV into sentences:\n{_csv(args)}",
        f"Write this CSV as sentences:\n{_csv(args)}",
        f"Describe these people:\n{_csv(args)}",
        f"Write a sentence for each row with {head}: {_rows(args)}",
    ]


def _sentence(columns: tuple[str, ...], row: Args) -> str:
    clauses = [_CLAUSE[c].format(v) for c, v in zip(columns[1:], row[1:], strict=True)]
    body = clauses[0] if len(clauses) == 1 else ", ".join(clauses[:-1]) + " and " + clauses[-1]
    return f"{row[0]} {body}."


def _sentence_answer(args: Args) -> str:
    return " ".join(_sentence(args[0], row) for row in args[1:])


def _thought(noun: str):
    def thought(args: Args) -> str:
        n = len(args) - 1
        return f"There {'is' if n == 1 else 'are'} {_COUNT[n]} {noun}{'' if n == 1 else 's'}."

    return thought


KINDS = (
    Kind("json", 1.0, lambda r: _draw(r, 3), _json_prompts, _json_answer, _thought("record")),
    Kind("table", 1.4, lambda r: _draw(r, 3), _table_prompts, _table_answer, _thought("row")),
    Kind(
        "sentences",
        0.9,
        lambda r: _draw(r, 3),
        _sentence_prompts,
        _sentence_answer,
        _thought("row"),
    ),
)
