"""Take the names of user, host and home out of a report."""

from __future__ import annotations

import re
from typing import Any

from clover_rt.doctor.host import Host

# the names of every machine: they tell nothing, and are parts of paths and of other words
COMMON = ("root", "localhost", "")


def redact(value: Any, host: Host) -> Any:
    """Return a report's data with each such name replaced by what it is."""
    swaps: list[tuple[re.Pattern[str], str]] = []
    if host.home not in ("", "/"):
        swaps.append((re.compile(re.escape(host.home.rstrip("/")) + r"(?![\w-])"), "~"))
    for name, word in ((host.name, "<host>"), (host.user, "<user>")):
        if name not in COMMON:
            swaps.append((re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), word))
    return _swap(value, swaps)


def _swap(value: Any, swaps: list[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(value, str):
        for pattern, word in swaps:
            value = pattern.sub(word, value)
        return value
    if isinstance(value, dict):
        return {_swap(k, swaps): _swap(v, swaps) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_swap(v, swaps) for v in value]
    return value
