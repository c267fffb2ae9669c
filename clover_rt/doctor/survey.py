"""Which backends there are and what each finds, asked in children.

A backend asks drivers for their devices, and a driver that crashes or hangs ends whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from clover_rt.doctor.question import ask
from clover_rt.hookspecs import GROUP
from clover_rt.plugins import Status, discover, survey

if TYPE_CHECKING:
    from clover_rt.doctor.host import Host

# torch alone may be read from a slow disk for half of it
LIMIT_S = 60.0
BROKEN = "broken"
"""Status of a backend whose probe ended the child, or did not end."""
FIX = (
    "update or remove the driver that breaks; what is found of OpenCL, Vulkan and torch tells which"
)


def backends(host: Host, names: Sequence[str] | None = None) -> list[Status]:
    """Return one status a backend: all are asked in one child, and each in its own if that breaks.

    names  entry points of the backends (default: those that are installed)
    """
    found = ask(host, ("backends", ""), LIMIT_S)
    if isinstance(found, dict):
        return [Status.of(told) for told in found["backends"]]
    if names is None:
        names = sorted({point.name for point in metadata.entry_points(group=GROUP)})
    return [row for name in names for row in _alone(host, name)]


def answer(name: str) -> dict[str, Any]:
    """Return the backends of a plugin, "" for all, as the child answers."""
    return {"backends": [row.as_dict() for row in survey(discover(only=name or None))]}


def _alone(host: Host, name: str) -> Iterator[Status]:
    found = ask(host, ("backends", name), LIMIT_S)
    if isinstance(found, dict):
        yield from map(Status.of, found["backends"])
    else:
        yield Status(name, name, "", "", BROKEN, f"asking it for devices: {found.how}", FIX)
