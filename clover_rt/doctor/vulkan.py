"""Vulkan: registered drivers, and the devices, limits and features that the loader lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clover_rt.doctor import gpus
from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import TIMED_OUT, Host, Ran
from clover_rt.doctor.question import ask, no_answer

FOLDERS = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
CHOSEN = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
# drivers of processors and of the null device
SOFTWARE = ("lvp_icd", "swrast", "llvmpipe", "swiftshader")
VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x8086": "Intel"}


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `vulkan`, and add its GPUs to `gpus`."""
    name, icds, missing = registered(host)
    out: dict[str, Any] = {"icds": icds, "loader": "", "devices": []}
    report["vulkan"] = out
    if missing:
        yield finding("CRT-5505", f"{name}: no such file: {', '.join(missing)}", name=name)
    answer = ask(host, ("vulkan",))
    if isinstance(answer, Ran):
        yield from blame(host, icds, answer)
        return
    out.update(answer)
    software = []
    for device in out["devices"]:
        if device["kind"] == "cpu":
            software.append(device["name"])
        else:
            gpus.see(report, "vulkan", about(device))
    cards = ", ".join(g["id"] for g in report["gpus"] if "pci" in g["seen_by"])
    hardware = [i for i in icds if not any(s in i.lower() for s in SOFTWARE)]
    seen = [d for d in out["devices"] if d["kind"] != "cpu"]
    if out["loader"] and cards and not seen and not missing:
        listed = ", ".join(icds) or "no file in " + ", ".join(FOLDERS)
        if not hardware:
            yield finding("CRT-5501", f"drivers: {listed}; GPUs {cards}")
        else:
            devices = ", ".join(software) or "none"
            yield finding("CRT-5502", f"devices: {devices}; drivers: {listed}; GPUs {cards}")
    if software:
        yield finding("CRT-5503", ", ".join(software))


def about(device: dict[str, Any]) -> dict[str, Any]:
    """Return what Vulkan adds to the entry of a card."""
    local = [h["bytes"] for h in device["heaps"] if h["is_device_local"]]
    return {
        "id": device["id"],
        "name": device["name"],
        "vendor": VENDORS.get(device["vendor_id"], device["vendor_id"]),
        "kind": device["kind"],
        "memory_total": max(local, default=0),
    }


def registered(host: Host) -> tuple[str, list[str], list[str]]:
    """Return (the variable that chooses, "" for none; driver files; files that are not there)."""
    for name in CHOSEN:
        if host.environ.get(name):
            paths = [p for p in host.environ[name].split(":") if p]
            missing = [p for p in paths if not host.exists(p)]
            return name, [p for p in paths if p not in missing], missing
    found = [f"{f}/{n}" for f in FOLDERS for n in host.names(f) if n.endswith(".json")]
    return "", found, []


def blame(host: Host, icds: list[str], ran: Ran) -> Iterator[Finding]:
    """The loader did not answer with all drivers: ask with each alone and name the bad ones."""
    if not ran.is_started:
        yield no_answer("Vulkan devices", ran, "CRT-5504")
        return
    bad = []
    for path in icds if len(icds) > 1 else ():
        environ = {**host.environ, "VK_DRIVER_FILES": path, "VK_ICD_FILENAMES": path}
        alone = ask(host, ("vulkan",), environ=environ)
        if isinstance(alone, Ran):
            bad.append((path, alone))
    if not bad:
        bad = [(next(iter(icds), "(no driver file)"), ran)]
    for path, end in bad:
        if end.state == TIMED_OUT or not end.is_started:
            yield no_answer(f"Vulkan devices, {path}", end, "CRT-5504")
        else:
            yield finding("CRT-5504", f"{path}: {end.how}", path=path)
