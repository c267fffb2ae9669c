"""Which device and engine a run takes where none is named, and why; plain data, no library.

A card of its own comes before others, Triton before OpenCL, more memory before less. What follows
is opened only by its name; devices that are not hardware come last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clover_rt.backend import DeviceInfo, Probe
from clover_rt_rocm.variables import VISIBILITY

INTEGRATED = "it is part of a processor"


def decide(
    hip: Probe, opencl: Probe, override: str, environ: Mapping[str, str]
) -> tuple[DeviceInfo, ...]:
    """Return the devices of both engines, each with the reason; what is chosen comes first.

    override  how an override contradicts a card, "" where none does
    """
    judged = [replace(d, only_by_name=d.only_by_name or _reason(d, override)) for d in hip.devices]
    hidden = _unheeded(environ)
    for d in opencl.devices:
        reason = d.only_by_name or _reason(d, override) or ("" if d.is_software else hidden)
        judged.append(replace(d, only_by_name=reason))
    judged.sort(key=_rank)
    able = [d for d in judged if not d.only_by_name and not d.is_software]
    if not able:
        return tuple(_by_name(d) for d in judged)
    first = able[0]
    cards = [d for d in able if _engine(d) == _engine(first)]
    why = "the only AMD card" if len(cards) == 1 else "the AMD card with the most memory"
    since = f"; not Triton: {hip.problem}" if _engine(first) != "triton" and hip.problem else ""
    more = first.notes.get("chosen", "")
    text = f"{why}{since}" + (f"; {more}" if more else "")
    chosen = replace(first, notes={**first.notes, "chosen": text})
    rest = [_behind(d, first) for d in judged if d is not first]
    return (chosen, *(_by_name(d) for d in rest))


def _rank(info: DeviceInfo) -> tuple[bool, bool, bool, int]:
    is_other = _engine(info) != "triton"
    return info.is_software, bool(info.only_by_name), is_other, -info.memory_bytes


def _behind(info: DeviceInfo, first: DeviceInfo) -> DeviceInfo:
    if info.only_by_name or info.is_software:
        return info
    return replace(info, only_by_name=f"{first.id} comes first")


def _engine(info: DeviceInfo) -> str:
    return info.notes.get("engine", "")


def _reason(info: DeviceInfo, override: str) -> str:
    if info.is_software:
        return ""
    return override or (INTEGRATED if info.kind == "integrated" else "")


def _unheeded(environ: Mapping[str, str]) -> str:
    """Return the variable that hides cards from one of AMD's libraries, but not from OpenCL."""
    name = next((n for n in VISIBILITY if n in environ), "")
    return f"{name}={environ[name]} is set, and OpenCL may count cards otherwise" if name else ""


def _by_name(info: DeviceInfo) -> DeviceInfo:
    reason = info.only_by_name or "it is a software device"
    text = f"by its name; not by itself, since {reason}"
    return replace(info, notes={**info.notes, "chosen": text})
