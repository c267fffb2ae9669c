"""Small Python functions from a grammar, with names that were never seen."""

from __future__ import annotations

from random import Random

from clover_train.task import Args, Kind
from clover_train.words import NOUNS, made_up

# what it does, its arguments, the docstring, the body; {n} is a number of the prompt
_GRAMMAR: dict[str, tuple[str, str, str]] = {
    "adds two numbers": ("a, b", "Add two numbers.", "return a + b"),
    "subtracts two numbers": ("a, b", "Subtract two numbers.", "return a - b"),
    "multiplies two numbers": ("a, b", "Multiply two numbers.", "return a * b"),
    "returns the larger number": ("a, b", "Return the larger number.", "return max(a, b)"),
    "returns the smaller number": ("a, b", "Return the smaller number.", "return min(a, b)"),
    "squares a number": ("x", "Square a number.", "return x * x"),
    "adds {n} to a number": ("x", "Add {n} to a number.", "return x + {n}"),
    "multiplies a number by {n}": ("x", "Multiply a number by {n}.", "return x * {n}"),
    "takes {n} from a number": ("x", "Take {n} from a number.", "return x - {n}"),
    "tells if a number is even": ("x", "Tell if a number is even.", "return x % 2 == 0"),
    "tells if a number is odd": ("x", "Tell if a number is odd.", "return x % 2 == 1"),
    "tells if a number is larger than {n}": (
        "x",
        "Tell if a number is larger than {n}.",
        "return x > {n}",
    ),
    "returns the first item": ("items", "Return the first item.", "return items[0]"),
    "returns the last item": ("items", "Return the last item.", "return items[-1]"),
    "returns the length of a list": ("items", "Return the length of a list.", "return len(items)"),
    "sums a list": ("items", "Sum a list.", "return sum(items)"),
    "sorts a list": ("items", "Sort a list.", "return sorted(items)"),
    "reverses a list": ("items", "Reverse a list.", "return items[::-1]"),
    "prints the numbers from 0 to {n}": (
        "",
        "Print the numbers from 0 to {n}.",
        "for i in range({n} + 1):\n        print(i)",
    ),
    "prints each item": ("items", "Print each item.", "for item in items:\n        print(item)"),
    "adds {n} to each item": (
        "items",
        "Add {n} to each item.",
        "result = []\n    for item in items:\n        result.append(item + {n})\n    return result",
    ),
    "multiplies each item by {n}": (
        "items",
        "Multiply each item by {n}.",
        "result = []\n    for item in items:\n        result.append(item * {n})\n    return result",
    ),
    "counts the items larger than {n}": (
        "items",
        "Count the items larger than {n}.",
        "count = 0\n    for item in items:\n        if item > {n}:\n            count += 1\n"
        "    return count",
    ),
    "keeps the items larger than {n}": (
        "items",
        "Keep the items larger than {n}.",
        "result = []\n    for item in items:\n        if item > {n}:\n"
        "            result.append(item)\n    return result",
    ),
}
_DEEDS = tuple(_GRAMMAR)


def _draw(rng: Random) -> Args:
    deed = rng.choice(_DEEDS)
    name = rng.choice(NOUNS) if rng.random() < 0.5 else made_up(rng, 3, 7)
    return name, deed, rng.randint(2, 99) if "{n}" in deed else 0


def _prompts(args: Args) -> list[str]:
    name, deed, n = args
    does = deed.replace("{n}", str(n))
    return [
        f"Write a Python function called {name} that {does}.",
        f"Write a Python function {name} that {does}.",
        f"Write a function {name} that {does}.",
        f"Python function {name} that {does}",
        f"Please write a function called {name} that {does}.",
        f"Define a Python function named {name} that {does}.",
    ]


def _answer(args: Args) -> str:
    name, deed, n = args
    arguments, doc, body = (s.replace("{n}", str(n)) for s in _GRAMMAR[deed])
    return f'def {name}({arguments}):\n    """{doc}"""\n    {body}'


def _thought(args: Args) -> str:
    arguments = _GRAMMAR[args[1]][0]
    count = len(arguments.split(", ")) if arguments else 0
    return f"{args[0]} takes {('no arguments', 'one argument', 'two arguments')[count]}."


KINDS = (Kind("python", 0.8, _draw, _prompts, _answer, _thought),)
