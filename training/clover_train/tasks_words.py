"""Reversing, spelling, echoing, ranges of letters, days and months, dates."""

from __future__ import annotations

from random import Random

from clover_train.task import Args, Kind
from clover_train.words import (
    COLORS,
    DAYS,
    KNOWN,
    MONTH_DAYS,
    MONTHS,
    NOUNS,
    distinct,
    made_up,
    word,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _reverse_draw(rng: Random) -> Args:
    return tuple(distinct(rng, word, rng.randint(3, 6)))


def _reverse_prompts(args: Args) -> list[str]:
    items = ", ".join(args)
    return [
        f"Reverse this list: {items}",
        f"Reverse the list: {items}.",
        f"List in reverse order: {items}",
        f"Write these words in reverse order: {items}",
        f"Reverse: {items}",
        f"reverse {items}",
    ]


def _spell_draw(rng: Random) -> Args:
    if rng.random() < 0.25:
        return (rng.choice(NOUNS if rng.random() < 0.85 else COLORS),)
    return (made_up(rng, 3, 8),)


def _spell_prompts(args: Args) -> list[str]:
    (w,) = args
    return [
        f"Spell {w}.",
        f"Spell the word {w}.",
        f"How do you spell {w}?",
        f"Please spell {w} for me.",
        f"Spell the word {w} letter by letter.",
        f"spell {w}",
    ]


def _echo_draw(rng: Random) -> Args:
    def item(r: Random) -> str:
        return str(r.randint(0, 99)) if r.random() < 0.15 else word(r, 0.25)

    if rng.random() < 0.25:
        return rng.randint(2, 8), word(rng)
    return 1, " ".join(item(rng) for _ in range(rng.randint(2, 7)))


def _echo_prompts(args: Args) -> list[str]:
    times, text = args
    if times > 1:
        return [
            f"Say {text} {times} times.",
            f"Repeat the word {text} {times} times.",
            f"Write {text} {times} times.",
        ]
    return [
        f"Repeat this: {text}",
        f"Repeat: {text}",
        f"Say this again: {text}",
        f"Write this again: {text}",
        f"Echo: {text}",
        f"Copy this: {text}",
    ]


def drill(rng: Random) -> tuple[str, str]:
    """Return a prompt and answer that are nothing but copying: echoes longer than the task's."""
    items = []
    for _ in range(rng.randint(5, 18)):
        number = rng.random() < 0.25
        items.append(str(rng.randint(0, 999)) if number else word(rng, 0.35))
    text = " ".join(items)
    return rng.choice(_echo_prompts((1, text))), f"Here you go: {text}"


def _echo_thought(args: Args) -> str:
    times, text = args
    return f"Write it {times} times." if times > 1 else f"The first word is {text.split()[0]}."


def _range_draw(rng: Random) -> Args:
    what = rng.choice(("letters", "letters", "days", "months"))
    if what == "letters":
        low = rng.randint(0, 23)
        return what, low, rng.randint(3, min(26 - low, 9))
    size = 7 if what == "days" else 12
    return what, rng.randrange(size), rng.randint(2, min(size, 9))


def _range_items(args: Args) -> list[str]:
    what, low, n = args
    if what == "letters":
        return list(LETTERS[low : low + n])
    names = DAYS if what == "days" else MONTHS
    return [names[(low + i) % len(names)] for i in range(n)]


def _range_prompts(args: Args) -> list[str]:
    what, low, n = args
    items = _range_items(args)
    start = items[0]
    prompts = [
        f"List {n} {what} starting with {start}.",
        f"Name {n} {what} starting from {start}.",
        f"Write {n} {what} from {start} on.",
        f"Give me {n} {what} starting with {start}.",
    ]
    if what == "letters":
        prompts.append(f"List the letters from {start} to {items[-1]}.")
    return prompts


def _range_thought(args: Args) -> str:
    items = _range_items(args)
    return f"Go from {items[0]} to {items[-1]}."


def _date_draw(rng: Random) -> Args:
    form = rng.choice(("iso", "iso", "long", "day", "day", "next"))
    if form == "day":
        return form, rng.randrange(7), rng.choice((1, 1, -1)) * rng.randint(2, 5)
    month = rng.randint(1, 12)
    day = rng.randint(1, MONTH_DAYS[month - 1])
    if form == "next":
        # a third at the end of a month, where the answer is another month
        day = MONTH_DAYS[month - 1] if rng.random() < 0.33 else day
        return form, month, day
    return form, rng.randint(1900, 2099), month, day


def _long(args: Args) -> str:
    _, year, month, day = args
    return f"{MONTHS[month - 1]} {day}, {year}"


def _iso(args: Args) -> str:
    _, year, month, day = args
    return f"{year}-{month:02d}-{day:02d}"


def _date_prompts(args: Args) -> list[str]:
    form = args[0]
    if form == "day":
        _, day, n = args
        way = "after" if n > 0 else "before"
        return [
            f"What day is {abs(n)} days {way} {DAYS[day]}?",
            f"Which day comes {abs(n)} days {way} {DAYS[day]}?",
            f"Name the day {abs(n)} days {way} {DAYS[day]}.",
        ]
    if form == "next":
        _, month, day = args
        date = f"{MONTHS[month - 1]} {day}"
        return [
            f"What is the day after {date}?",
            f"Which date comes after {date}?",
            f"What is the next day after {date}?",
        ]
    if form == "iso":
        d = _iso(args)
        return [
            f"Write the date {d} with the name of the month.",
            f"Write {d} as a long date.",
            f"Which date is {d}?",
            f"What date is {d}?",
        ]
    d = _long(args)
    return [
        f"Write the date {d} in digits.",
        f"Write {d} as a short date.",
        f"Write the date {d} in ISO format.",
    ]


def _date_answer(args: Args) -> str:
    form = args[0]
    if form == "day":
        _, day, n = args
        way = 1 if n > 0 else -1
        passed = [DAYS[(day + way * i) % 7] for i in range(1, abs(n) + 1)]
        back = "" if n > 0 else " back"
        return f"Count{back} {abs(n)} days: {', '.join(passed)}. It is {passed[-1]}."
    if form == "next":
        _, month, day = args
        is_last = day == MONTH_DAYS[month - 1]
        after = f"{MONTHS[month % 12]} 1" if is_last else f"{MONTHS[month - 1]} {day + 1}"
        return f"The day after {MONTHS[month - 1]} {day} is {after}."
    return f"The date is {_long(args) if form == 'iso' else _iso(args)}."


def _date_thought(args: Args) -> str:
    form = args[0]
    if form == "day":
        n = abs(args[2])
        return f"Take {n} steps from {DAYS[args[1]]}."
    month = args[1] if form == "next" else args[2]
    if form == "next":
        return f"{MONTHS[month - 1]} has {MONTH_DAYS[month - 1]} days."
    return f"Month {month} is {MONTHS[month - 1]}."


KINDS = (
    Kind(
        "reverse",
        0.8,
        _reverse_draw,
        _reverse_prompts,
        lambda a: "Reversed: " + ", ".join(reversed(a)),
        lambda a: f"The last word is {a[-1]}.",
    ),
    Kind(
        "spell",
        0.6,
        _spell_draw,
        _spell_prompts,
        lambda a: "-".join(a[0]),
        lambda a: f"The word has {len(a[0])} letters.",
        # the letters of a known word, which is one token, can only be learned by seeing them
        always_trained=lambda a: a[0] in KNOWN,
    ),
    Kind(
        "echo",
        0.8,
        _echo_draw,
        _echo_prompts,
        lambda a: "Here you go: " + " ".join([a[1]] * a[0]),
        _echo_thought,
    ),
    Kind(
        "range",
        1.8,
        _range_draw,
        _range_prompts,
        lambda a: ", ".join(_range_items(a)),
        _range_thought,
    ),
    Kind("date", 1.4, _date_draw, _date_prompts, _date_answer, _date_thought),
)
