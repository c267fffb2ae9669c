"""The processor and memory: what there is, what this process may use, how fast memory is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import Host
from clover_rt.doctor.question import no_answer

FEATURES = {
    "x86_64": (
        *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl"),
        *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    ),
    "aarch64": ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2"),
}
NEEDED = {"x86_64": ("avx2", "fma"), "aarch64": ("asimd",)}
MIB = 1 << 20
# a limit above this is how the first cgroup version says "none"
NO_LIMIT = 1 << 60
BANDWIDTH_S = 60.0


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `cpu` and `memory`."""
    model, flags = processor(host)
    known = FEATURES.get(host.machine, ())
    allowed, limit = quota(host), memory_limit(host)
    cpu: dict[str, Any] = {
        "model": model,
        "cores": host.cores,
        "usable_cores": host.usable_cores,
        "quota_cores": allowed,
        "features": [f for f in known if f in flags],
        "last_level_cache_bytes": last_level_cache(host),
    }
    memory: dict[str, Any] = {**sizes(host), "limit": limit}
    report["cpu"], report["memory"] = cpu, memory
    missing = [f for f in NEEDED.get(host.machine, ()) if f not in flags]
    if flags and missing:
        yield finding("CRT-5010", f"/proc/cpuinfo lists no {' and no '.join(missing)}: {model}")
    told = []
    if host.usable_cores < host.cores:
        told.append(f"{host.usable_cores} of {host.cores} processors by affinity")
    if allowed is not None and allowed < host.usable_cores:
        told.append(f"{allowed:.3g} processors' time by cgroup quota")
    if limit is not None and limit < memory["total"]:
        gb = f"{limit / 1e9:.2f} of {memory['total'] / 1e9:.2f} GB"
        told.append(f"{gb} memory by cgroup limit")
    if told:
        yield finding("CRT-5011", "; ".join(told))


def measure(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `memory.read_gb_per_s`: all usable cores sum arrays far larger than the cache."""
    memory = report["memory"]
    room = min(v for v in (memory["available"], memory["limit"]) if v) if memory["available"] else 0
    size = min(max(4 * report["cpu"]["last_level_cache_bytes"], 256 * MIB), room // 4)
    if size < 64 * MIB:
        memory["read_note"] = "too little free memory to measure"
        return
    argv = ("bandwidth", str(size), str(report["cpu"]["usable_cores"]))
    ran = host.child(argv, host.environ, BANDWIDTH_S)
    if not ran.is_fine:
        yield no_answer("measuring memory bandwidth", ran, "CRT-5001")
        return
    memory.update(json.loads(ran.out))


def processor(host: Host) -> tuple[str, set[str]]:
    """Return the first processor's model and feature names."""
    model, flags = "", set[str]()
    for line in (host.read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        key = key.strip()
        if key == "model name" and not model:
            model = value.strip()
        if key in ("flags", "Features") and not flags:
            flags = set(value.split())
    return model or host.machine, flags


def last_level_cache(host: Host) -> int:
    """Return the bytes of the largest cache that processor 0 sees; 0 where it is not told."""
    base = "/sys/devices/system/cpu/cpu0/cache"
    found = [0]
    for name in host.names(base):
        text = host.read(f"{base}/{name}/size") or ""
        match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
        if match:
            found.append(int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]])
    return max(found)


def sizes(host: Host) -> dict[str, int]:
    """Return total and available bytes of memory, as /proc/meminfo says."""
    out = {"total": 0, "available": 0}
    for line in (host.read("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            out[key[3:].lower()] = int(value.split()[0]) * 1024
    return out


def quota(host: Host) -> float | None:
    """Return the processors' time that the cgroups allow, None for no limit."""
    found = []
    for folder in cgroups(host, "cpu"):
        second = (host.read(f"{folder}/cpu.max") or "").split()
        first = (host.read(f"{folder}/cpu.cfs_quota_us"), host.read(f"{folder}/cpu.cfs_period_us"))
        pair = second if len(second) == 2 else [t for t in first if t is not None]
        if len(pair) == 2 and pair[0] != "max" and int(pair[0]) > 0:
            found.append(int(pair[0]) / int(pair[1]))
    return min(found, default=None)


def memory_limit(host: Host) -> int | None:
    """Return the bytes of memory that the cgroups allow, None for no limit."""
    found = []
    for folder in cgroups(host, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = host.read(f"{folder}/{name}")
            if text is not None and text.isdigit() and int(text) < NO_LIMIT:
                found.append(int(text))
    return min(found, default=None)


def cgroups(host: Host, controller: str) -> Iterator[str]:
    """Yield this process's cgroup folders for a controller, from the inner to the root."""
    for line in (host.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = "/sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = f"/sys/fs/cgroup/{controllers}"
        else:
            continue
        parts = [p for p in path.split("/") if p]
        for n in range(len(parts), -1, -1):
            yield "/".join([base, *parts[:n]])
