"""AMD on Linux: driver, nodes, WSL, architecture, overrides; through files only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from clover_rt.doctor import gpus, nodes, overrides
from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import Host

KFD = "/dev/kfd"
DRI = "/dev/dri"
DXG = "/dev/dxg"
TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `amd`, and the architecture of AMD's entries in `gpus`."""
    amd: dict[str, Any] = {"nodes": [], "topology": []}
    report["amd"] = amd
    if report["system"]["is_wsl"]:
        yield from wsl(host, report)
        return
    for number in topology(host):
        amd["topology"].append(number)
        gpus.see(report, "kfd", number)
    mine = gpus.of(report, "AMD")
    for g in mine:
        if g["kind"] == "unknown" and g["arch"]:
            g["kind"] = "integrated" if g["arch"] in gpus.INTEGRATED else "discrete"
    yield from overrides.overrides(host, mine)
    if not mine:
        return
    found = [host.node(p) for p in (KFD, *render_nodes(host, report))]
    present = [n for n in found if n is not None]
    amd["nodes"] = [nodes.as_dict(n) for n in present]
    yield from absent(host, report, [n.path for n in present])
    yield from nodes.judge(host, present)
    order = sorted(mine, key=lambda g: g.get("node", 1 << 30))
    # HIP takes CUDA's variable too, where its own is not set
    names = list(overrides.AMD_VISIBILITY)
    if "HIP_VISIBLE_DEVICES" not in host.environ and not gpus.of(report, "NVIDIA"):
        names[1] = "CUDA_VISIBLE_DEVICES"
    yield from overrides.hidden(host, order, names)


def absent(host: Host, report: dict[str, Any], present: list[str]) -> Iterator[Finding]:
    """Say why /dev/kfd or every render node is not there."""
    missing = [] if KFD in present else [KFD]
    if not any(p.startswith(DRI) for p in present):
        missing.append(f"{DRI}/renderD*")
    if not missing:
        return
    told = f"{' and '.join(missing)}: no such file"
    cards = ", ".join(f"{g['id']} driver {g['driver'] or 'none'}" for g in gpus.of(report, "AMD"))
    inside = report["system"]["container"]
    if inside and host.exists("/sys/module/amdgpu"):
        flags = "--device /dev/kfd --device /dev/dri and --group-add for their groups"
        yield finding("CRT-5103", f"{told}; {inside}; {cards}", flags=flags)
    elif not host.exists("/sys/module/amdgpu"):
        yield finding("CRT-5101", f"/sys/module/amdgpu: no such file; {cards}")
    else:
        yield finding("CRT-5102", f"{told}; {cards}")


def wsl(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Under WSL there is no /dev/kfd; what counts is /dev/dxg."""
    node = host.node(DXG)
    if node is None:
        yield finding("CRT-5111", f"{DXG}: no such file; /proc/version names Microsoft")
        return
    report["amd"]["nodes"] = [nodes.as_dict(node)]
    yield finding("CRT-5110", f"{DXG} is there; /proc/version names Microsoft")
    yield from nodes.judge(host, [node])
    rocm = "rocm" in host.packages.get("torch", "") or host.exists("/opt/rocm")
    value = host.environ.get("HSA_ENABLE_DXG_DETECTION", "")
    if rocm and value != "1":
        yield finding("CRT-5112", f"HSA_ENABLE_DXG_DETECTION={value or '(not set)'}")
    yield from overrides.overrides(host, [])


def render_nodes(host: Host, report: dict[str, Any]) -> list[str]:
    """Return the render nodes of AMD's cards, by the drm folder of each."""
    out = []
    for g in gpus.of(report, "AMD"):
        drm = host.names(f"{gpus.PCI}/{g['id']}/drm")
        out += [f"{DRI}/{name}" for name in drm if name.startswith("renderD")]
    return sorted(set(out))


def topology(host: Host) -> Iterator[dict[str, Any]]:
    """Yield the GPUs of the compute driver: node number, architecture, PCI address, memory."""
    for number in sorted(host.names(TOPOLOGY), key=lambda n: int(n) if n.isdigit() else -1):
        text = host.read(f"{TOPOLOGY}/{number}/properties") or ""
        values = dict(re.findall(r"^(\w+) (\d+)$", text, re.M))
        version = int(values.get("gfx_target_version", 0))
        if not version or not number.isdigit():
            continue
        location, domain = int(values.get("location_id", 0)), int(values.get("domain", 0))
        address = f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
        unique = int(values.get("unique_id", 0))
        yield {
            "id": address,
            "node": int(number),
            "vendor": "AMD",
            "name": host.read(f"{TOPOLOGY}/{number}/name") or "",
            "arch": gfx_target(version),
            "uuid": f"GPU-{unique:016x}" if unique else "",
        }


def gfx_target(version: int) -> str:
    """Return the architecture of a number such as 120001 (gfx1201) or 90010 (gfx90a)."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
