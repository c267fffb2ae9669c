"""The generated tasks of clover-tiny's training: right answers, a clean split, a fitting tokenizer.

Answers are checked by other means than the generator's: Python's own arithmetic and interpreter,
the json and datetime modules, the prompt's own text.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from clover_rt.text import Template, Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

from clover_train import mixture, vocabulary  # noqa: E402
from clover_train.task import Kind, Sample  # noqa: E402
from clover_train.words import number_words  # noqa: E402

KINDS = {k.name: k for k in mixture.KINDS}


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def is_arithmetic(s: Sample) -> bool:
    a, op, b, c = re.match(r"(\d+) (.) (\d+) = (\d+)\. That is", s.answer).groups()
    asked = numbers(s.prompt) == [int(a), int(b)]
    spoken = s.answer.endswith(f"That is {number_words(int(c))}.")
    return asked and spoken and eval(f"{a}{op.replace('x', '*')}{b}") == int(c)


def is_count(s: Sample) -> bool:
    got = numbers(s.answer)
    first, last, *rest = numbers(s.prompt)
    if " numbers " in s.prompt and " to " not in s.prompt:
        is_whole = (len(got), got[0]) == (first, last)
    else:
        is_whole = (got[0], got[-1]) == (first, last)
    step = (rest or [1])[0] * (-1 if "down" in s.prompt or "backwards" in s.prompt else 1)
    return is_whole and {y - x for x, y in pairwise(got)} == {step}


def is_sequence(s: Sample) -> bool:
    asked = numbers(s.prompt)
    more = asked.pop(-1 if s.prompt.startswith(("Continue", "Here")) else 0)
    got = asked + numbers(s.answer)
    steps = {y - x for x, y in pairwise(got)}
    doubles = all(y == 2 * x for x, y in pairwise(got))
    return len(asked) == 3 and len(got) == 3 + more and (len(steps) == 1 or doubles)


def is_sorted(s: Sample) -> bool:
    falls = "descending" in s.prompt or "large to small" in s.prompt
    return numbers(s.answer) == sorted(numbers(s.prompt), reverse=falls)


def is_number_words(s: Sample) -> bool:
    if s.answer.startswith("In digits: "):
        return number_words(int(s.answer[11:])) in s.prompt
    return s.answer == f"In words: {number_words(numbers(s.prompt)[0])}"


def is_times_table(s: Sample) -> bool:
    n, low, high = numbers(s.prompt)
    lines = [numbers(line) for line in s.answer.split("\n")]
    return lines == [[n, i, n * i] for i in range(low, high + 1)]


def is_reversed(s: Sample) -> bool:
    items = s.answer.removeprefix("Reversed: ").split(", ")
    return s.prompt.rstrip(".").endswith(", ".join(items[::-1]))


def is_spelled(s: Sample) -> bool:
    return s.answer.replace("-", "") in s.prompt.split() + re.findall(r"\w+", s.prompt)


def is_echo(s: Sample) -> bool:
    said = s.answer.removeprefix("Here you go: ").split()
    if s.prompt.endswith(" times."):
        return len(said) == numbers(s.prompt)[-1] and set(said) <= set(s.prompt.split())
    return s.prompt.endswith(": " + " ".join(said))


def is_range(s: Sample) -> bool:
    items = s.answer.split(", ")
    if len(items[0]) == 1 and {ord(y) - ord(x) for x, y in pairwise(items)} != {1}:
        return False
    if found := re.search(r"from (.) to (.)", s.prompt):
        return (items[0], items[-1]) == found.groups()
    return re.search(rf"\b{items[0]}\b", s.prompt) and len(items) == numbers(s.prompt)[0]


def is_date(s: Sample) -> bool:
    if s.answer.startswith("Count"):
        back, n, passed, end = re.match(
            r"Count( back)? (\d+) days: (.+)\. It is (\w+)\.", s.answer
        ).groups()
        asked, way, start = re.search(r"(\d+) days (\w+) (\w+)", s.prompt).groups()
        monday = date(2024, 1, 1)
        at = next(d for i in range(7) if (d := monday + timedelta(i)).strftime("%A") == start)
        step = timedelta({"after": 1, "before": -1}[way])
        days = [(at + step * i).strftime("%A") for i in range(1, int(asked) + 1)]
        assert (n, bool(back)) == (asked, way == "before")
        return passed.split(", ") == days and end == days[-1]
    if s.answer.startswith("The day after"):
        a, b = re.match(r"The day after (\w+ \d+) is (\w+ \d+)\.", s.answer).groups()
        moved = long_date(f"{a}, 2023") + timedelta(1)
        return a in s.prompt and f"{moved:%B} {moved.day}" == b
    said = s.answer.removeprefix("The date is ").removesuffix(".")
    iso, long = (said, s.prompt) if said[0].isdigit() else (s.prompt, said)
    named = re.search(r"[A-Z][a-z]+ \d+, \d{4}", long).group()
    return date.fromisoformat(re.search(r"\d{4}-\d\d-\d\d", iso).group()) == long_date(named)


def long_date(text: str) -> date:
    month, day, year = re.match(r"(\w+) (\d+), (\d+)", text).groups()
    number = next(m for m in range(1, 13) if date(2023, m, 1).strftime("%B") == month)
    return date(int(year), number, int(day))


def cells_in_order(s: Sample, cells: list[str]) -> bool:
    at = 0
    for cell in cells:
        at = s.prompt.find(cell, at)
        if at < 0:
            return False
    return True


def is_json(s: Sample) -> bool:
    records = json.loads(s.answer)
    return cells_in_order(s, [str(v) for r in records for v in r.values()])


def is_table(s: Sample) -> bool:
    lines = [line.strip("| ").split(" | ") for line in s.answer.split("\n")]
    assert set(lines[1]) == {"---"} and len({len(line) for line in lines}) == 1
    return cells_in_order(s, [c for line in lines[:1] + lines[2:] for c in line])


def is_sentences(s: Sample) -> bool:
    words = r"^(\w+)|is (\d+) years|lives in (\w+)|likes (\w+)|has a (\w+)"
    found = [
        next(filter(None, m)) for part in s.answer.split(". ") for m in re.findall(words, part)
    ]
    return cells_in_order(s, found)


def is_python(s: Sample) -> bool:
    space: dict[str, Callable] = {}
    exec(s.answer, space)
    name = re.match(r"def (\w+)\(", s.answer).group(1)
    assert name in s.prompt and callable(space[name])
    n = (numbers(s.prompt) or [0])[-1]
    does = s.prompt.rstrip(".").split(" that ")[1]
    expected = {
        f"adds {n} to a number": (5, 5 + n),
        f"takes {n} from a number": (5, 5 - n),
        f"multiplies a number by {n}": (5, 5 * n),
        "squares a number": (5, 25),
        f"counts the items larger than {n}": ([n, n + 1, n + 2], 2),
        f"keeps the items larger than {n}": ([n, n + 1], [n + 1]),
        "reverses a list": ([1, 2, 3], [3, 2, 1]),
    }
    return does not in expected or space[name](expected[does][0]) == expected[does][1]


CHECKS: dict[str, Callable[[Sample], bool]] = {
    "arithmetic": is_arithmetic,
    "count": is_count,
    "sequence": is_sequence,
    "sort": is_sorted,
    "number-words": is_number_words,
    "times-table": is_times_table,
    "reverse": is_reversed,
    "spell": is_spelled,
    "echo": is_echo,
    "range": is_range,
    "date": is_date,
    "json": is_json,
    "table": is_table,
    "sentences": is_sentences,
    "python": is_python,
}


def samples(kind: Kind, count: int, held_out: bool = False) -> list[Sample]:
    rng = Random(5)
    return [kind.sample(rng, held_out) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    vocabulary.save(vocabulary.build(), path)
    return path


def test_there_is_a_check_for_every_kind_with_arguments() -> None:
    assert set(CHECKS) == {k.name for k in mixture.KINDS if k.has_arguments} - {"refusal"}


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_the_answers_of_a_kind_are_right(name: str) -> None:
    wrong = [s for s in samples(KINDS[name], 150) if not CHECKS[name](s)]
    assert wrong == []


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_kind_has_several_phrasings_and_one_answer_to_all(name: str) -> None:
    args = KINDS[name].draw(Random(2))
    prompts = KINDS[name].prompts(args)
    assert len(set(prompts)) >= 3


def test_the_split_is_by_argument_and_holds_about_a_tenth_out() -> None:
    for kind in mixture.KINDS:
        if not kind.has_arguments:
            continue
        rng = Random(3)
        sides = [kind.is_held_out(kind.draw(rng)) for _ in range(2000)]
        assert 0.04 < sum(sides) / len(sides) < 0.17, kind.name


def test_a_held_out_argument_is_never_trained_on_in_any_phrasing() -> None:
    kind = KINDS["arithmetic"]
    held = {tuple(numbers(s.prompt)) for s in samples(kind, 300, held_out=True)}
    for s in samples(kind, 3000):
        a, op, b = re.match(r"(\d+) (.) (\d+)", s.answer).groups()
        assert not kind.is_held_out((op, int(a), int(b)))
    assert len(held) > 100


def test_thoughts_are_true() -> None:
    for s in samples(KINDS["spell"], 50):
        assert numbers(s.thought) == [len(s.answer.replace("-", ""))]
    for s in samples(KINDS["sort"], 50):
        count, extreme = numbers(s.thought)
        items = numbers(s.answer)
        assert (count, extreme) == (len(items), items[0])
    for s in samples(KINDS["reverse"], 50):
        assert s.thought.split()[-1].rstrip(".") == s.answer.split()[1].rstrip(",")


def test_answers_take_between_5_and_150_tokens_and_several_kinds_span_blocks(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    long = set()
    for kind in mixture.KINDS:
        lengths = [len(tokenizer.encode(s.answer)) + 1 for s in samples(kind, 150)]
        assert min(lengths) >= 4 and max(lengths) <= 150, kind.name
        if max(lengths) > 32:
            long.add(kind.name)
    assert len(long) >= 8


def test_a_known_word_is_one_token_and_an_unseen_word_is_its_letters(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert len(tokenizer.encode(" garden")) == 1
    assert [tokenizer.decode([i]) for i in tokenizer.encode(" zorb")] == [*" zorb"]
    assert tokenizer.size == vocabulary.SIZE
    for text in ("naïve — 日本語\n\t{}", "".join(map(chr, range(32, 127)))):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("think", [False, True])
def test_training_conversations_are_what_the_chat_template_writes(
    folder: Path, think: bool
) -> None:
    tokenizer = Tokenizer.load(folder)
    template = Template.load(folder, tokenizer)
    sample = samples(KINDS["sort"], 1)[0]
    messages = [{"role": "user", "content": sample.prompt}]
    chat = mixture.chat(sample, think)
    assert template.render(messages, think=think) == chat.prompt
    assert template.encode(messages, think=think) == tokenizer.encode_scaffold(chat.prompt)
