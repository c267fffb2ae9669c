"""Which device and engine a run takes where none is named, and why; plain data, no library.

A card of its own comes before others, Triton before OpenCL, more memory before less. What follows
is opened only by its name; devices that are not hardware come last. Why Triton is not there, or not
for a card, is told with the devices that it matters to, whatever else was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clover_rt.backend import DeviceInfo, Probe
from clover_rt_rocm.opencl.find import DRIVER
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
    able = [d for d in judged if not d.only_by_name]
    if not able:
        judged[:1] = [_behind(d, _missing(hip, opencl)) for d in judged[:1]]
        return tuple(_by_name(d) for d in judged)
    first = able[0]
    why = _why(first, [d for d in able if _engine(d) == _engine(first)], hip, opencl)
    without = [d.id for d in _without_triton(hip, opencl)]
    told = [_noted(first, why)]
    for d in judged:
        if d is not first:
            own = replace(d, only_by_name=d.only_by_name or f"{first.id} comes first")
            more = f"not Triton: {hip.problem}" if d.id in without else ""
            told.append(_by_name(_behind(own, more)))
    return tuple(told)


def _rank(info: DeviceInfo) -> tuple[bool, bool, bool, int]:
    is_other = _engine(info) != "triton"
    return info.is_software, bool(info.only_by_name), is_other, -info.memory_bytes


def _why(first: DeviceInfo, cards: Sequence[DeviceInfo], hip: Probe, opencl: Probe) -> str:
    """Return why the first of an engine's cards is taken, and what Triton lacks."""
    is_triton = _engine(first) == "triton"
    if len(cards) > 1:
        why = "the AMD card with the most memory"
    elif is_triton and (hip.problem or len(_discrete(opencl)) > 1):
        why = "the only AMD card that Triton can drive"
    else:
        why = "the only AMD card"
    if not hip.problem:
        return why
    return f"{why}; {hip.problem}" if is_triton else f"{why}; not Triton: {hip.problem}"


def _missing(hip: Probe, opencl: Probe) -> str:
    """Return what is missing of both engines where nothing is taken, and what to do, for each.

    Each is a line of its own.
    """
    told = [("Triton", hip)] if hip.problem else []
    if opencl.problem:
        told.append(("OpenCL", opencl))
    elif not any(not d.is_software for d in hip.devices) and not _amd(opencl):
        told.append(("OpenCL", Probe(problem="none of its devices is an AMD GPU", fix=DRIVER)))
    return ";\n".join(f"{engine}: {p.problem}: {p.fix}" for engine, p in told)


def _without_triton(hip: Probe, opencl: Probe) -> list[DeviceInfo]:
    """Return the AMD GPUs of OpenCL that Triton, which has a problem, does not drive."""
    driven = [d.notes["arch"] for d in hip.devices if "arch" in d.notes]
    # OpenCL names a card by its architecture, or with it
    return [d for d in _amd(opencl) if hip.problem and not any(a in d.name for a in driven)]


def _amd(opencl: Probe) -> list[DeviceInfo]:
    """Return the AMD GPUs among OpenCL's devices; others have their own reason by now."""
    return [d for d in opencl.devices if not d.is_software and not d.only_by_name]


def _discrete(opencl: Probe) -> list[DeviceInfo]:
    return [d for d in _amd(opencl) if d.kind == "discrete"]


def _behind(info: DeviceInfo, more: str) -> DeviceInfo:
    """Return a device with something more behind the reason why it is not taken by itself."""
    return replace(info, only_by_name=f"{info.only_by_name};\n{more}") if more else info


def _engine(info: DeviceInfo) -> str:
    return info.notes.get("engine", "")


def _reason(info: DeviceInfo, override: str) -> str:
    if info.is_software:
        return "it is a software device"
    return override or (INTEGRATED if info.kind == "integrated" else "")


def _unheeded(environ: Mapping[str, str]) -> str:
    """Return the variable that hides cards from one of AMD's libraries, but not from OpenCL."""
    name = next((n for n in VISIBILITY if n in environ), "")
    return f"{name}={environ[name]} is set, and OpenCL may count cards otherwise" if name else ""


def _by_name(info: DeviceInfo) -> DeviceInfo:
    # who names a device knows why; `only_by_name` has the reason
    return _noted(info, "by its name")


def _noted(info: DeviceInfo, reason: str) -> DeviceInfo:
    """Return a device with the reason before what its engine says of it."""
    told = "; ".join(text for text in (reason, info.notes.get("chosen", "")) if text)
    return replace(info, notes={**info.notes, "chosen": told})
