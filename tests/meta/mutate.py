"""Wrong code made from right code: a function's source with a few words changed."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from types import FunctionType
from typing import Any
from unittest.mock import patch

from clover_rt.ops import OPS

Edit = tuple[str, str]


def find(target: str) -> tuple[Any, str, FunctionType]:
    """Return (owner, attribute, function) of `module:name` or `module:Class.name`."""
    module, path = target.split(":")
    owner: Any = import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name, getattr(owner, name)


def mutated(function: FunctionType, edits: Sequence[Edit]) -> FunctionType:
    """Return the function compiled from its source with each (old, new) replaced everywhere.

    Raises ValueError where `old` does not occur: the right code has changed, the edit must follow.
    """
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits:
        if old not in source:
            raise ValueError(f"{function.__qualname__} has no {old!r}; its source:\n{source}")
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(source, f"<wrong {function.__qualname__}>", "exec"), function.__globals__, made)
    wrong = made[function.__name__]
    assert isinstance(wrong, FunctionType)
    return wrong


@contextmanager
def swapped(target: str, edits: Sequence[Edit]) -> Iterator[None]:
    """Run with the mutated function in the place of the right one, wherever that is known.

    That is its own module, modules that imported it, and the contract of an op whose reference it
    is: kernels that run references look them up there at each call.
    """
    owner, name, function = find(target)
    wrong = mutated(function, edits)
    with ExitStack() as stack:
        stack.enter_context(patch.object(owner, name, wrong))
        for module in [m for n, m in sys.modules.items() if n.startswith("clover_rt.")]:
            for attribute, value in list(vars(module).items()):
                if value is function:
                    stack.enter_context(patch.object(module, attribute, wrong))
        specs = {
            op: replace(s, reference=wrong) for op, s in OPS.items() if s.reference is function
        }
        stack.enter_context(patch.dict(OPS, specs))
        yield
