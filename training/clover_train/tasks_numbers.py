"""Arithmetic, counts, sequences, sorting, number words, multiplication tables."""

from __future__ import annotations

from random import Random

from clover_train.task import Args, Kind
from clover_train.words import number_words

_RESULT = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "x": lambda a, b: a * b}
_SPOKEN = {"+": "plus", "-": "minus", "x": "times"}


def _arith_draw(rng: Random) -> Args:
    op = rng.choice("+++---x")
    if op == "x":
        return op, rng.randint(2, 10), rng.randint(2, 10)
    a, b = rng.randint(0, 50), rng.randint(0, 50)
    return (op, max(a, b), min(a, b)) if op == "-" else (op, a, b)


def _arith_prompts(args: Args) -> list[str]:
    op, a, b = args
    spoken = f"{a} {_SPOKEN[op]} {b}"
    return [
        f"What is {a} {op} {b}?",
        f"How much is {a} {op} {b}?",
        f"Compute {a} {op} {b}.",
        f"Calculate {a} {op} {b}",
        f"{a} {op} {b} = ?",
        f"What is {spoken}?",
        f"How much is {spoken}?",
        f"what is {a} {op} {b}",
    ]


def _arith_answer(args: Args) -> str:
    op, a, b = args
    c = _RESULT[op](a, b)
    return f"{a} {op} {b} = {c}. That is {number_words(c)}."


def _arith_thought(args: Args) -> str:
    op, a, b = args
    return {"+": f"Add {a} and {b}.", "-": f"Take {b} from {a}.", "x": f"Multiply {a} by {b}."}[op]


def _count_draw(rng: Random) -> Args:
    # short ones are frequent, and a few take the 120 tokens that thirty numbers need
    step = rng.choice((1, 1, 1, 1, 2, 2, 5, 10))
    start = rng.randint(0, 50) if rng.random() < 0.7 else 1
    fits = (99 - start) // step + 1
    length = min(rng.randint(4, 30), rng.randint(4, 30), fits)
    end = start + step * (length - 1)
    return (end, start, -step) if rng.random() < 0.4 else (start, end, step)


def _count_prompts(args: Args) -> list[str]:
    a, b, step = args
    n = (b - a) // step + 1
    by = "" if abs(step) == 1 else f" by {abs(step)}"
    if step < 0:
        return [
            f"Count down from {a} to {b}{by}.",
            f"Count backwards from {a} to {b}{by}.",
            f"count down from {a} to {b}{by}",
            f"Count {n} numbers down from {a}{by}.",
            f"Write {n} numbers down from {a}{by}.",
            f"List {n} numbers going down from {a}{by}.",
        ]
    return [
        f"Count from {a} to {b}{by}.",
        f"Write the numbers from {a} to {b}{by}.",
        f"List the numbers from {a} to {b}{by}.",
        f"count from {a} to {b}{by}",
        f"Count {n} numbers from {a}{by}.",
        f"Write {n} numbers from {a}{by}.",
        f"List {n} numbers starting with {a}{by}.",
        f"count {n} numbers from {a}{by}",
    ]


def _count_answer(args: Args) -> str:
    a, b, step = args
    return ", ".join(str(n) for n in range(a, b + (1 if step > 0 else -1), step))


def _count_thought(args: Args) -> str:
    a, b, step = args
    return f"Start at {a}, {'add' if step > 0 else 'take'} {abs(step)}, stop at {b}."


def _sequence_draw(rng: Random) -> Args:
    more = rng.randint(3, 6)
    if rng.random() < 0.15:
        return "double", rng.randint(1, 9), 2, min(more, 5)
    step = rng.randint(1, 10)
    first = rng.randint(0, min(50, 99 - step * (more + 2)))
    if rng.random() < 0.45:
        return "down", first + step * (more + 2), -step, more
    return "up", first, step, more


def _sequence_terms(args: Args) -> list[int]:
    rule, first, step, more = args
    if rule == "double":
        return [first * 2**i for i in range(more + 3)]
    return [first + step * i for i in range(more + 3)]


def _sequence_prompts(args: Args) -> list[str]:
    head = ", ".join(map(str, _sequence_terms(args)[:3]))
    more = args[3]
    return [
        f"Continue the sequence {head} with {more} more numbers.",
        f"Continue {head} with {more} more numbers.",
        f"What are the next {more} numbers after {head}?",
        f"Give the next {more} numbers: {head}",
        f"Here is a sequence: {head}. Write the next {more} numbers.",
    ]


def _sequence_answer(args: Args) -> str:
    return "Next: " + ", ".join(map(str, _sequence_terms(args)[3:]))


def _sequence_thought(args: Args) -> str:
    rule, _, step, _ = args
    if rule == "double":
        return "Each number is twice the last."
    return f"Each number is {abs(step)} {'more' if step > 0 else 'less'} than the last."


def _sort_draw(rng: Random) -> Args:
    numbers = rng.sample(range(100), rng.randint(3, 5))
    return rng.random() < 0.25, *numbers


def _sort_prompts(args: Args) -> list[str]:
    items = ", ".join(map(str, args[1:]))
    if args[0]:
        return [
            f"Sort these numbers from large to small: {items}",
            f"Sort from large to small: {items}",
            f"Sort in descending order: {items}",
            f"Put these numbers in descending order: {items}.",
        ]
    return [
        f"Sort these numbers: {items}",
        f"Sort these numbers: {items}.",
        f"Sort: {items}",
        f"Put in order: {items}",
        f"Put these numbers in order: {items}.",
        f"Please sort {items}.",
        f"Sort the list {items} from small to large.",
        f"sort {items}",
    ]


def _sort_answer(args: Args) -> str:
    return "Sorted: " + ", ".join(map(str, sorted(args[1:], reverse=args[0])))


def _sort_thought(args: Args) -> str:
    extreme = max(args[1:]) if args[0] else min(args[1:])
    word = "largest" if args[0] else "smallest"
    return f"There are {len(args) - 1} numbers. The {word} is {extreme}."


def _words_draw(rng: Random) -> Args:
    n = rng.randint(0, 9999) if rng.random() < 0.8 else rng.randint(0, 999)
    return rng.random() < 0.4, n


def _words_prompts(args: Args) -> list[str]:
    reads, n = args
    if reads:
        w = number_words(n)
        return [
            f"Write {w} in digits.",
            f"Write the number {w} in digits.",
            f"Write {w} as a number.",
            f"Which number is {w}?",
            f"What is {w} in digits?",
        ]
    return [
        f"Write {n} in words.",
        f"Write the number {n} in words.",
        f"Spell out the number {n}.",
        f"How do you say {n}?",
        f"What is {n} in words?",
        f"write {n} in words",
    ]


def _words_answer(args: Args) -> str:
    reads, n = args
    return f"In digits: {n}" if reads else f"In words: {number_words(n)}"


def _words_thought(args: Args) -> str:
    digits = len(str(args[1]))
    return f"The number has {digits} digit{'' if digits == 1 else 's'}."


def _times_draw(rng: Random) -> Args:
    low = rng.randint(1, 7)
    return rng.randint(2, 10), low, min(rng.randint(low + 2, low + 5), 10)


def _times_prompts(args: Args) -> list[str]:
    n, low, high = args
    return [
        f"Write the multiplication table of {n} from {low} to {high}.",
        f"Multiplication table of {n}, from {low} to {high}.",
        f"Multiply {n} by the numbers from {low} to {high}.",
        f"Show the times table of {n} from {low} to {high}.",
        f"Times table of {n} from {low} to {high}",
    ]


def _times_answer(args: Args) -> str:
    n, low, high = args
    return "\n".join(f"{n} x {i} = {n * i}" for i in range(low, high + 1))


def _times_thought(args: Args) -> str:
    n, low, high = args
    return f"Write {high - low + 1} lines for {n}."


KINDS = (
    Kind("arithmetic", 2.6, _arith_draw, _arith_prompts, _arith_answer, _arith_thought),
    Kind("count", 3.0, _count_draw, _count_prompts, _count_answer, _count_thought),
    Kind("sequence", 2.4, _sequence_draw, _sequence_prompts, _sequence_answer, _sequence_thought),
    Kind("sort", 1.9, _sort_draw, _sort_prompts, _sort_answer, _sort_thought),
    Kind("number-words", 0.5, _words_draw, _words_prompts, _words_answer, _words_thought),
    Kind("times-table", 1.0, _times_draw, _times_prompts, _times_answer, _times_thought),
)
