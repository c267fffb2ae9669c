"""What a report says of the machine it was measured on: names, sizes, memory bandwidth."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from clover_rt import __version__
from clover_rt.backend import Device, Usage
from clover_rt.doctor.bandwidth import measure

# more than the caches of cards hold
COPIED_BYTES = 1 << 28
COPIES = 8
ROUNDS = 5


def environment() -> dict[str, Any]:
    """Return the names of machine and software, for a report."""
    return {
        "clover_rt": __version__,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
    }


def cpu_name() -> str:
    """Return the processor's name, family and model."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict.fromkeys(("model name", "cpu family", "model"), "")
        for line in info.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in fields and not fields[name.strip()]:
                fields[name.strip()] = value.strip()
        if fields["model name"]:
            family = f" (family {fields['cpu family']}, model {fields['model']})"
            return fields["model name"] + family
    return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """Return the largest resident size that this process ever had; 0 where that is not told."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def last_level_cache_bytes() -> int:
    """Return the size of the largest cache that cpu 0 sees; 32 MiB where it is not told."""
    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes)


def read_bandwidth() -> dict[str, Any]:
    """Return how fast all cores together read arrays of 4 times the last-level cache."""
    size = max(4 * last_level_cache_bytes(), 256 << 20)
    found = measure(size, os.cpu_count() or 1)
    return {
        "method": "read by all cores",
        "bytes": found["read_bytes"],
        "last_level_cache_bytes": last_level_cache_bytes(),
        "threads": found["read_threads"],
        "gb_per_s": found["read_gb_per_s"],
    }


def copy_bandwidth(device: Device) -> dict[str, Any]:
    """Return how fast a device copies inside its memory: bytes read and bytes written count."""
    free = device.memory().free
    size = min(COPIED_BYTES, free // 8) if free else COPIED_BYTES
    buffers = [device.alloc(size, Usage.SCRATCH) for _ in range(2)]
    best = float("inf")
    # the first round warms up
    for i in range(1 + ROUNDS):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(COPIES):
            device.copy(buffers[0], 0, buffers[1], 0, size)
        device.synchronize()
        if i:
            best = min(best, (time.perf_counter() - start) / COPIES)
    for buffer in buffers:
        device.free(buffer)
    return {"method": "copied inside the device", "bytes": size, "gb_per_s": 2 * size / best / 1e9}
