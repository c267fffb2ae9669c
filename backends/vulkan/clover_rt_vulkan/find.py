"""Find Vulkan devices, and choose what drives them.

Cards of their own come first; software devices are used only by name. CLOVER_RT_VULKAN_DRIVER
chooses between the raw bindings, which are the default, and Kompute.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clover_rt.backend import DeviceInfo, Probe
from clover_rt.errors import BackendUnavailable

if TYPE_CHECKING:
    from clover_rt_vulkan.device import VulkanDevice
    from clover_rt_vulkan.driver import Driver
    from clover_rt_vulkan.driver.cards import Card

VARIABLE = "CLOVER_RT_VULKAN_DRIVER"
RAW, KOMPUTE = "raw", "kompute"
INSTALL = 'pip install "clover-rt[vulkan]"'
LOADER = "install the Vulkan loader (Debian: libvulkan1; Windows: your card's driver brings it)"
DRIVER = (
    "install your card's Vulkan driver (Debian: mesa-vulkan-drivers for AMD and Intel; NVIDIA's "
    "own driver); `clover-rt doctor` lists what the loader sees"
)
BUILD = (
    'pip install "clover-rt[kompute]" and run `python -m clover_rt_vulkan.driver.build_kompute`, '
    "which builds kp in minutes with cmake, a C++ compiler and headers (Debian: apt-get install "
    f"cmake make g++ python3-dev libvulkan-dev libfmt-dev); or unset {VARIABLE}"
)
# variables that name driver files instead of the loader's folders
NAMING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
FOLDERS = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
ORDER = ("discrete", "integrated", "virtual", "other", "cpu")
API = (1, 2)
# what the shaders take, whatever the model's sizes
LEAST = {"push": 128, "items": 128, "bindings": 12, "shared": 16 << 10, "binding": 1 << 27}


def probe() -> Probe:
    """Return the Vulkan devices of this machine, or what is missing."""
    if importlib.util.find_spec("vulkan") is None:
        return Probe(problem="the package vulkan is not installed", fix=INSTALL)
    chosen = driver_of(os.environ)
    if chosen not in (RAW, KOMPUTE):
        problem = f"{VARIABLE}={chosen} is no driver; drivers: {RAW}, {KOMPUTE}"
        return Probe(problem=problem, fix=f"unset {VARIABLE}, or set it to one of these")
    try:
        from clover_rt_vulkan.driver import cards
    except OSError as error:
        return Probe(problem=f"there is no Vulkan loader: {_line(error)}", fix=LOADER)
    try:
        with cards.instance() as instance:
            found = cards.cards(instance)
    # a loader or a driver that is broken must not end the program
    except Exception as error:
        problem = f"no Vulkan driver answers: {_line(error)}; driver files: {_driver_files()}"
        return Probe(problem=problem, fix=DRIVER)
    # behind what both drivers need, which is then told alike
    missing = missing_kompute() if chosen == KOMPUTE else ""
    if missing:
        return Probe(problem=f"{VARIABLE}={KOMPUTE}, and {missing}", fix=BUILD)
    if not found:
        return Probe(problem=f"no Vulkan device; driver files: {_driver_files()}", fix=DRIVER)
    if chosen == KOMPUTE:
        # it enables none
        found = [replace(card, features=frozenset()) for card in found]
    usable = [(name, card) for name, card in named(found) if not unusable(card)]
    if not usable:
        told = "; ".join(f"{c.name}: {unusable(c)}" for c in found)
        return Probe(problem=f"no Vulkan device can be used: {told}", fix=DRIVER)
    return Probe(devices=tuple(describe(name, card, engine(chosen)) for name, card in usable))


def driver_of(environ: Mapping[str, str]) -> str:
    """Return the driver that is asked for."""
    return environ.get(VARIABLE) or RAW


def missing_kompute() -> str:
    """Return "" where the package kp can be used, else why it cannot."""
    if importlib.util.find_spec("kp") is None:
        return "the package kp is not installed"
    try:
        version = importlib.import_module("kp").__version__
    # its libraries may be missing, or be those of another Python
    except Exception as error:
        return f"the package kp cannot be imported: {_line(error)}"
    return "" if version.startswith("0.9.") else f"kp is {version}, 0.9 is needed"


def engine(driver: str) -> str:
    """Return a driver's name for people, with the version of what is built here."""
    if driver == RAW:
        return "vulkan, raw bindings"
    return f"vulkan, Kompute {importlib.import_module('kp').__version__}"


def named(found: Iterable[Card]) -> list[tuple[str, Card]]:
    """Return (id, card) of every device in the order in which they are preferred.

    Ids are `vulkan:N`, and `llvmpipe` for devices that are software.
    """
    out: list[tuple[str, Card]] = []
    counts: dict[str, int] = {}
    for card in sorted(found, key=lambda c: ORDER.index(c.kind)):
        kind = "llvmpipe" if card.kind == "cpu" else "vulkan"
        n = counts.setdefault(kind, 0)
        counts[kind] += 1
        out.append((kind if kind == "llvmpipe" and not n else f"{kind}:{n}", card))
    return out


def unusable(card: Card) -> str:
    """Return "" for a device that can be used, else why it cannot, with both numbers."""
    if card.api < API:
        return f"it has Vulkan {card.api[0]}.{card.api[1]}, {API[0]}.{API[1]} is needed"
    if card.family < 0:
        return "none of its queues computes"
    for name, least in LEAST.items():
        has = getattr(card.limits, name)
        if has < least:
            return f"its limit {name} is {has}, {least} is needed"
    return ""


def describe(name: str, card: Card, engine: str) -> DeviceInfo:
    """Return what is told of a device.

    engine  what drives it
    """
    is_software = card.kind == "cpu"
    limits = card.limits
    return DeviceInfo(
        id=name,
        name=card.name,
        kind=card.kind if card.kind in ("cpu", "discrete", "integrated") else "gpu",
        memory_bytes=card.memory_bytes,
        is_software=is_software,
        notes={
            "engine": engine,
            "api": f"{card.api[0]}.{card.api[1]}",
            "driver": card.driver,
            "uuid": card.uuid,
            "pci": card.pci or "not told",
            "subgroup": str(limits.subgroup),
            "largest binding": str(limits.binding),
            "features": ", ".join(sorted(card.features)) or "none",
            "chosen": "only by --device: it is software" if is_software else "by default",
        },
    )


def open_device(info: DeviceInfo) -> VulkanDevice:
    """Open the device with an id of `named`; BackendUnavailable: it is gone or cannot be used."""
    from clover_rt_vulkan.device import VulkanDevice
    from clover_rt_vulkan.driver import DriverFailure, cards
    from clover_rt_vulkan.library import Library

    library = Library()
    try:
        instance = cards.make_instance()
    except DriverFailure as failure:
        raise _gone(info, f"no Vulkan driver answers now: {failure}") from failure
    try:
        listed = cards.cards(instance)
        found = dict(named(listed))
        if info.id not in found:
            raise _gone(info, f"there are {len(found)} Vulkan devices now: {', '.join(found)}")
        card = found[info.id]
        driver = open_driver(driver_of(os.environ), instance, card, listed.index(card))
        return VulkanDevice(card.name, driver, library)
    except DriverFailure as failure:
        raise BackendUnavailable(
            what=f"{info.name} was to be opened",
            evidence=f"its driver, {info.notes.get('driver', '')}, failed: {failure}",
            fix="update the card's driver, end other programs on the card, or use --backend cpu",
            code="CRT-3014",
        ) from failure


def open_driver(name: str, instance: Any, card: Card, index: int) -> Driver:
    """Open a card with a driver.

    index  the card's place among those that the loader lists
    """
    if name == KOMPUTE:
        from clover_rt_vulkan.driver.kompute import KomputeDriver

        return KomputeDriver(instance, card, index)
    from clover_rt_vulkan.driver.raw import RawDriver

    return RawDriver(instance, card)


def _gone(info: DeviceInfo, evidence: str) -> BackendUnavailable:
    return BackendUnavailable(
        what=f"device {info.id} was to be opened",
        evidence=evidence,
        fix="run `clover-rt backends` again: a driver or a card has gone",
        code="CRT-3013",
    )


def _driver_files() -> str:
    """Return the driver files that the loader is told of, and by what."""
    for name in NAMING:
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    found = [p.name for folder in FOLDERS for p in sorted(Path(folder).glob("*.json"))]
    return ", ".join(found) or "none"


def _line(error: Any) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
