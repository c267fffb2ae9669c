"""Which card a run takes where none is named, and why; plain data, no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clover_rt.backend import DeviceInfo, Probe

INTEGRATED = "it is part of a processor"


def decide(found: Probe) -> tuple[DeviceInfo, ...]:
    """Return the devices, each with the reason; the card with the most memory comes first.

    What else was found, such as a card that torch has no code for, is told with the first.
    """
    judged = sorted((replace(d, only_by_name=_reason(d)) for d in found.devices), key=_rank)
    if not judged:
        return ()
    first, rest = judged[0], judged[1:]
    if first.only_by_name or first.is_software:
        more = f"; {found.problem}: {found.fix}" if found.problem else ""
        told = _by_name(replace(first, only_by_name=f"{first.only_by_name}{more}"))
    else:
        cards = [d for d in judged if not d.only_by_name and not d.is_software]
        told = replace(first, notes={**first.notes, "chosen": _why(first, cards, found.problem)})
        rest = [_behind(d, first) for d in rest]
    return (told, *(_by_name(d) for d in rest))


def _reason(info: DeviceInfo) -> str:
    """Return why a device is opened only by its name, "" where it may be chosen by itself."""
    if info.is_software:
        return "it is a software device"
    return INTEGRATED if info.kind == "integrated" else ""


def _rank(info: DeviceInfo) -> tuple[bool, bool, int]:
    return info.is_software, bool(info.only_by_name), -info.memory_bytes


def _why(first: DeviceInfo, cards: Sequence[DeviceInfo], problem: str) -> str:
    equal = sum(d.memory_bytes == first.memory_bytes for d in cards)
    if len(cards) == 1:
        why = "the only NVIDIA card" + (" that torch has code for" if problem else "")
    elif equal == 1:
        why = "the NVIDIA card with the most memory"
    else:
        why = f"the first of {equal} NVIDIA cards with the most memory"
    return f"{why}; {problem}" if problem else why


def _behind(info: DeviceInfo, first: DeviceInfo) -> DeviceInfo:
    return info if info.only_by_name else replace(info, only_by_name=f"{first.id} comes first")


def _by_name(info: DeviceInfo) -> DeviceInfo:
    text = f"by its name; not by itself, since {info.only_by_name}"
    return replace(info, notes={**info.notes, "chosen": text})
