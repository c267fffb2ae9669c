"""Disk and caches: is there room, and can compiled kernels be kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import Host

LOW_BYTES = 1_000_000_000


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `storage`: the folders where kernels are kept, and the temporary one."""
    report["storage"] = rows = []
    for name, path in folders(host).items():
        total, free = host.disk(path)
        row = {"use": name, "path": path, "is_writable": host.writable(path)}
        row |= {"total": total, "free": free}
        rows.append(row)
        if not row["is_writable"]:
            if name == "TMPDIR":
                yield finding("CRT-5603", f"{path} cannot be written to")
            else:
                yield finding("CRT-5601", f"{path} cannot be written to", name=name)
        elif total and free < LOW_BYTES:
            told = f"{path}: {free / 1e9:.2f} of {total / 1e9:.1f} GB are free"
            yield finding("CRT-5602", told, name=name)


def folders(host: Host) -> dict[str, str]:
    """Return the folders by the variable that moves each."""
    env = host.environ
    base = env.get("XDG_CACHE_HOME", "")
    root = base if os.path.isabs(base) else f"{host.home}/.cache"
    out = {"XDG_CACHE_HOME": f"{root}/clover-rt"}
    # Triton's kernels leave that folder only for this one
    if env.get("TRITON_CACHE_DIR"):
        out["TRITON_CACHE_DIR"] = env["TRITON_CACHE_DIR"]
    out["TMPDIR"] = env.get("TMPDIR") or "/tmp"
    return out
