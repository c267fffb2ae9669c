"""NVIDIA on Linux: driver, nodes, what nvidia-smi says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from clover_rt.doctor import gpus, nodes, overrides
from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import ABSENT, TIMED_OUT, Host

FIELDS = "pci.bus_id,uuid,name,memory.total,memory.free,driver_version,compute_cap"
TOOLS = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
TOOL_S = 20.0
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `nvidia`, and NVIDIA's entries in `gpus`."""
    version = driver_version(host)
    report["nvidia"] = nvidia = {"driver": version, "nodes": []}
    mine = gpus.of(report, "NVIDIA")
    is_wsl = report["system"]["is_wsl"]
    if not version and not is_wsl:
        if mine:
            ids = ", ".join(f"{g['id']} driver {g['driver'] or 'none'}" for g in mine)
            yield finding("CRT-5201", f"/proc/driver/nvidia/version: no such file; {ids}")
        return
    if is_wsl and not host.exists("/usr/lib/wsl/lib/libcuda.so.1"):
        return
    if not is_wsl:
        yield from check_nodes(host, report)
    yield from ask(host, report, nvidia)
    yield from overrides.hidden(host, gpus.of(report, "NVIDIA"), overrides.NVIDIA_VISIBILITY[:1])


def driver_version(host: Host) -> str:
    text = host.read("/proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", text)
    return match[1] if match else ""


def check_nodes(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """The driver is loaded: are its nodes there, and do they open?"""
    names = [f"/dev/{n}" for n in host.names("/dev") if re.fullmatch(r"nvidia\d+", n)]
    found = [host.node(p) for p in (*names, *CONTROL)]
    present = [n for n in found if n is not None]
    report["nvidia"]["nodes"] = [nodes.as_dict(n) for n in present]
    if not names and gpus.of(report, "NVIDIA"):
        inside = report["system"]["container"]
        told = "/dev/nvidia0: no such file"
        if inside:
            flags = "--gpus all, with the NVIDIA container toolkit installed outside"
            yield finding("CRT-5103", f"{told}; {inside}", flags=flags)
        else:
            yield finding("CRT-5106", told, path="/dev/nvidia0 (`nvidia-modprobe` makes it) ")
    yield from nodes.judge(host, present)


def ask(host: Host, report: dict[str, Any], nvidia: dict[str, Any]) -> Iterator[Finding]:
    """Take identity, memory and compute capability from nvidia-smi."""
    query = (f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits")
    for tool in TOOLS:
        ran = host.run((tool, *query), host.environ, TOOL_S)
        if ran.state != ABSENT:
            break
    if ran.state == TIMED_OUT:
        yield finding("CRT-5002", f"{tool}: {ran.how}")
        return
    if not ran.is_fine:
        said = ran.out.strip().splitlines()[-1:]
        yield finding("CRT-5203", f"{tool}: {ran.how}" + (f"; {said[0]}" if said else ""))
        return
    for line in ran.out.splitlines():
        fields = [f.strip() for f in line.split(",")]
        if len(fields) != len(FIELDS.split(",")):
            continue
        bus, uuid, name, total, free, version, capability = fields
        nvidia["driver"] = nvidia["driver"] or version
        gpus.see(
            report,
            "nvidia-smi",
            {
                "id": address(bus),
                "vendor": "NVIDIA",
                "uuid": uuid,
                "name": name,
                "kind": "discrete",
                "memory_total": gpus.number(total) << 20,
                "memory_free": gpus.number(free) << 20,
                "arch": "sm_" + capability.replace(".", ""),
                "driver": f"nvidia {version}",
            },
        )


def address(bus: str) -> str:
    """Return a PCI address as the kernel writes it: 00000000:01:00.0 -> 0000:01:00.0."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
