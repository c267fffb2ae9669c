"""The graphics cards on the PCI bus, and one entry a card however many APIs see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import Host

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x8086": "Intel"}
PCI = "/sys/bus/pci/devices"
# display controllers, and processing accelerators such as compute cards without an output
CLASSES = ("0x03", "0x12")
INTEGRATED = {
    *("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037"),
    *("gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
}
"""AMD architectures that are part of a processor."""

Gpu = dict[str, Any]


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `gpus` with what the bus shows."""
    report["gpus"] = [gpu(host, address) for address in host.names(PCI) if is_gpu(host, address)]
    yield from ()


def is_gpu(host: Host, address: str) -> bool:
    kind = host.read(f"{PCI}/{address}/class") or ""
    return kind.startswith(CLASSES) and host.read(f"{PCI}/{address}/vendor") in VENDORS


def gpu(host: Host, address: str) -> Gpu:
    """Return a card as the bus shows it; other probes fill in the rest."""
    at = f"{PCI}/{address}"
    vendor = VENDORS[host.read(f"{at}/vendor") or ""]
    driver = f"{at}/driver"
    name = host.read(f"{at}/product_name") or f"{vendor} {host.read(f'{at}/device') or ''}".strip()
    return {
        "id": address,
        "vendor": vendor,
        "name": name,
        "kind": "integrated" if vendor == "Intel" and address.startswith("0000:00:") else "unknown",
        "arch": "",
        "memory_total": number(host.read(f"{at}/mem_info_vram_total")),
        "memory_free": free_memory(host, at),
        "driver": host.at(driver).resolve().name if host.exists(driver) else "",
        "seen_by": ["pci"],
        "hidden_by": [],
    }


def free_memory(host: Host, at: str) -> int:
    total = number(host.read(f"{at}/mem_info_vram_total"))
    return max(total - number(host.read(f"{at}/mem_info_vram_used")), 0) if total else 0


def number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def see(report: dict[str, Any], api: str, found: Mapping[str, Any]) -> Gpu:
    """Note that an API sees a device: the card at its PCI address, or a new entry without one.

    found  id (PCI address or ""), name, and what else the API knows; a value that is known
           already stays.
    """
    address = found.get("id") or ""
    for known in report["gpus"]:
        if address and known["id"] == address:
            break
    else:
        blank = {"vendor": "", "name": "", "kind": "unknown", "arch": "", "driver": ""}
        known = {"id": address or f"{api}:{found['name']}", **blank}
        known |= {"memory_total": 0, "memory_free": 0, "seen_by": [], "hidden_by": []}
        report["gpus"].append(known)
    if api not in known["seen_by"]:
        known["seen_by"].append(api)
    for key, value in found.items():
        vague = key == "kind" and known.get(key) == "unknown"
        named = key == "name" and str(known["name"]).startswith(f"{known['vendor']} 0x")
        if value and (vague or named or not known.get(key)):
            known[key] = value
    return dict(known)


def of(report: dict[str, Any], vendor: str) -> list[Gpu]:
    return [g for g in report["gpus"] if g["vendor"] == vendor]


def judge(report: dict[str, Any]) -> Iterator[Finding]:
    """Say what follows from the cards and backends together; runs after every other probe."""
    gpus = report["gpus"]
    cards = [g for g in gpus if g["kind"] != "integrated"]
    inside = [g for g in gpus if g["kind"] == "integrated"]
    if cards and inside:
        names = ", ".join(f"{g['id']} {g['name']} {g['arch']}".strip() for g in inside)
        yield finding("CRT-5140", f"{names}; cards: {', '.join(g['id'] for g in cards)}")
    usable = [b for b in report.get("backends", ()) if b["status"] == "usable"]
    others = [b["name"] for b in usable if any(d["kind"] != "cpu" for d in b["devices"])]
    if gpus and not others:
        names = ", ".join(f"{g['id']} {g['name']} {g['arch']}".strip() for g in gpus)
        have = ", ".join(b["name"] for b in usable) or "none"
        yield finding("CRT-5150", f"{names}; usable backends: {have}")
