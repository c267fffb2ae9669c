"""Closed word lists, number words and made-up words of the generated tasks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


def listed(text: str, separator: str | None = None) -> list[str]:
    """Return the items of a list written as one text."""
    return text.split(separator)


NOUNS = listed(
    "apple banana bear bell bird boat book bread bridge bus cake candle car castle cat chair "
    "cherry clock cloud coat corn cow desk dog door duck farm fish flower forest fox frog "
    "garden glass goat grape hat hill horse house island key kite lake lamp leaf lemon lion map "
    "milk mirror moon mouse orange owl paper peach pear pen piano pig pilot plum pond queen "
    "rabbit rain ring river road robot rose salt sand sheep ship shoe snake snow spoon star "
    "stone storm sun table tiger tower train tree truck turtle water whale wheel wind window "
    "wolf"
)
NAMES = listed(
    "Ada Alan Amir Ann Ben Bob Carl Clara Dan Diana Emma Eva Felix Grace Hana Hugo Ida Ivan Jack "
    "Jane Karen Leo Lily Lucy Mark Mia Nina Noah Olga Omar Paul Peter Rosa Ruth Sam Sara Tina Tom "
    "Vera Zoe"
)
CITIES = listed(
    "Athens Berlin Boston Cairo Delhi Dublin Geneva Hanoi Lima Lisbon London Madrid Milan Oslo "
    "Paris Prague Quito Rome Seoul Sofia Sydney Tokyo Vienna Warsaw"
)
COLORS = listed("black blue brown gold gray green orange pink purple red white yellow")
PETS = listed("bird cat cow dog duck fish frog goat horse mouse rabbit turtle")
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed(
    "January February March April May June July August September October November December"
)
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_SMALL = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = listed("? ? twenty thirty forty fifty sixty seventy eighty ninety")

_VOWELS = "aeiou"
_CONSONANTS = "bcdfghjklmnpqrstvwxz"


def number_words(n: int) -> str:
    """Return 0..9999 in words: 4773 is four thousand seven hundred seventy-three."""
    if n < 20:
        return _SMALL[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return _TENS[tens] + (f"-{_SMALL[ones]}" if ones else "")
    size, name = (1000, "thousand") if n >= 1000 else (100, "hundred")
    head, rest = divmod(n, size)
    return f"{number_words(head)} {name}" + (f" {number_words(rest)}" if rest else "")


def made_up(rng: Random, low: int = 3, high: int = 8) -> str:
    """Return a pronounceable word of low..high letters that is in none of the lists."""
    while True:
        length = rng.randint(low, high)
        is_vowel = rng.random() < 0.3
        letters = []
        while len(letters) < length:
            letters.append(rng.choice(_VOWELS if is_vowel else _CONSONANTS))
            # a few doubled kinds, so that not every word alternates
            is_vowel = not is_vowel if rng.random() < 0.85 else is_vowel
        word = "".join(letters)
        if word not in KNOWN:
            return word


KNOWN = {w.lower() for w in (*NOUNS, *NAMES, *CITIES, *COLORS, *PETS, *DAYS, *MONTHS)}


def word(rng: Random, unseen: float = 0.12) -> str:
    """Return a noun or colour, or with probability `unseen` a made-up word."""
    if rng.random() < unseen:
        return made_up(rng, 3, 6)
    return rng.choice(NOUNS if rng.random() < 0.85 else COLORS)


def name(rng: Random, unseen: float = 0.12) -> str:
    """Return a person's name, or with probability `unseen` a made-up one."""
    return made_up(rng, 3, 6).capitalize() if rng.random() < unseen else rng.choice(NAMES)


def distinct(rng: Random, draw: Callable[[Random], str], count: int) -> list[str]:
    """Return `count` different results of draw(rng)."""
    out: list[str] = []
    while len(out) < count:
        w = draw(rng)
        if w not in out:
            out.append(w)
    return out
