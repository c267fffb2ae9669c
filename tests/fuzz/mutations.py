"""Seeded ways to spoil JSON texts and binary files."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NUMBERS = (-1, 0, 1, 2, 3, 7, 8, 255, 4096, 65536, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    2**64,
    10**400,
    -(2**63),
    0.0,
    0.5,
    1.5,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    float("-inf"),
    None,
    True,
    False,
    "",
    "x",
    "../x",
    "\x00",
    "\ud800",
    "é" * 300,
    [],
    {},
    [0],
    [[]],
    [None, 1],
    {"a": 1},
)
TEXTS = (
    b"[" * 5000,
    b'{"a":' * 5000,
    b"9" * 5000,
    b"-",
    b"1e999",
    b"NaN",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\u0000",
    b"\x00",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"//",
    b" ",
    b"\xef\xbb\xbf",
)


def spoil_json(rng: random.Random, value: Any) -> bytes:
    """Return a JSON text with a few changes, some of which are no JSON any more."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        spoil_value(rng, value)
    blob = json.dumps(value).encode()
    if rng.random() < 0.25:
        blob = spoil_bytes(rng, blob)
    if rng.random() < 0.02:
        blob = blob.decode(errors="replace").encode(rng.choice(["utf-16", "utf-8-sig", "utf-32"]))
    return blob


def spoil_value(rng: random.Random, root: Any) -> None:
    """Change one place of nested objects and lists."""
    holders = [h for h in containers(root) if len(h)]
    if not holders:
        return
    holder = rng.choice(holders)
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    key = rng.choice(keys)
    kind = rng.random()
    if kind < 0.15:
        del holder[key]
    elif kind < 0.25:
        # a value from elsewhere: right types at wrong places
        other = rng.choice(holders)
        places = list(other) if isinstance(other, dict) else range(len(other))
        holder[key] = copy.deepcopy(other[rng.choice(places)])
    elif kind < 0.35 and isinstance(holder, dict):
        name = rng.choice([key + "_", key.upper(), "", "a.b", *holder])
        holder[name] = holder.pop(key)
    elif kind < 0.4 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind < 0.7 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        now = holder[key]
        near = [now - 1, now + 1, now * 2, now // 2, -now, str(now), float(now % 2**53)]
        holder[key] = rng.choice(near)
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))


def containers(value: Any) -> list[Any]:
    """Return every object and list inside a value, itself included."""
    found, stack = [], [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict | list):
            found.append(item)
            stack += item.values() if isinstance(item, dict) else item
    return found


def spoil_bytes(rng: random.Random, blob: bytes, first: int = 0, last: int | None = None) -> bytes:
    """Return bytes with a few changes in first..last: flips, cuts, copies and foreign text."""
    last = len(blob) if last is None else min(last, len(blob))
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(first, max(first, min(last, len(blob)) - 1))
        end = min(at + rng.choice([1, 1, 2, 8, 64]), len(blob))
        kind = rng.randrange(6)
        if kind == 0 and at < len(blob):
            blob = blob[:at] + bytes([blob[at] ^ (1 << rng.randrange(8))]) + blob[at + 1 :]
        elif kind == 1:
            blob = blob[:at] + blob[end:]
        elif kind == 2:
            to = rng.randint(first, max(first, last - 1))
            blob = blob[:to] + blob[at:end] + blob[to:]
        elif kind == 3:
            blob = blob[:at] + rng.choice(TEXTS) + blob[at:]
        elif kind == 4:
            blob = blob[:at] + rng.randbytes(end - at) + blob[end:]
        else:
            blob = blob[: rng.choice([0, 1, 7, 8, 9, at, at, len(blob) - 1])]
    return blob
