"""The system around the process: kernel, container, WSL, user namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clover_rt.doctor.findings import Finding
from clover_rt.doctor.host import Host

MARKS = ("docker", "kubepods", "lxc", "libpod", "containerd")
WHOLE_MAP = ["0", "0", "4294967295"]


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `system`; it has no findings of its own, but others depend on it."""
    report["system"] = {
        "system": host.system,
        "kernel": host.kernel,
        "machine": host.machine,
        "python": host.python,
        "distribution": distribution(host),
        "container": container(host),
        "is_wsl": is_wsl(host),
        "user_namespace": namespace(host),
        "packages": dict(host.packages),
    }
    yield from ()


def distribution(host: Host) -> str:
    for line in (host.read("/etc/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip('"')
    return ""


def container(host: Host) -> str:
    """Return the mark by which a container is known, "" for none."""
    for path in ("/.dockerenv", "/run/.containerenv"):
        if host.exists(path):
            return f"{path} exists"
    if host.environ.get("container"):
        return f"container={host.environ['container']}"
    for line in (host.read("/proc/1/cgroup") or "").splitlines():
        if any(mark in line for mark in MARKS):
            return f"/proc/1/cgroup has {line}"
    return ""


def is_wsl(host: Host) -> bool:
    return "microsoft" in (host.read("/proc/version") or "").lower()


def namespace(host: Host) -> str:
    """Return this user namespace's map of user ids; "" where it is the machine's own."""
    text = host.read("/proc/self/uid_map")
    if text is None or text.split() == WHOLE_MAP:
        return ""
    return "; ".join(" ".join(line.split()) for line in text.splitlines())


def has_group(host: Host, gid: int) -> bool:
    """Return whether a group id of a file stands for a group of this user namespace.

    Ids that the namespace does not map are shown as the overflow id, which no one can join.
    """
    overflow = host.read("/proc/sys/kernel/overflowgid") or "65534"
    return not (namespace(host) and str(gid) == overflow)
