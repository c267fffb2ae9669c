"""Which card a run takes where none is named, and why; plain data, no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clover_rt.backend import DeviceInfo


def decide(devices: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """Return the devices, each with the reason; the card with the most memory comes first."""
    cards = [d for d in devices if not d.is_software]
    if not cards:
        return tuple(_behind(d, "it is a software device") for d in devices)
    first = max(cards, key=lambda d: d.memory_bytes)
    told = [replace(first, notes={**first.notes, "chosen": _reason(first, cards)})]
    for d in devices:
        if d.is_software:
            told.append(_behind(d, "it is a software device"))
        elif d is not first:
            reason = f"{first.id} comes first"
            told.append(_behind(replace(d, only_by_name=reason), reason))
    return tuple(told)


def _reason(first: DeviceInfo, cards: Sequence[DeviceInfo]) -> str:
    if len(cards) == 1:
        return "the only NVIDIA card"
    equal = sum(d.memory_bytes == first.memory_bytes for d in cards)
    most = "the NVIDIA card with the most memory"
    return most if equal == 1 else f"the first of {equal} NVIDIA cards with the most memory"


def _behind(info: DeviceInfo, reason: str) -> DeviceInfo:
    text = f"by its name; not by itself, since {reason}"
    return replace(info, notes={**info.notes, "chosen": text})
