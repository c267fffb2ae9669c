"""The process that runs trials on a device, one line of JSON an order and an answer.

It is a process of its own so that a kernel which crashes or hangs ends a worker and not the run.
Standard output belongs to the protocol; what kernels print goes to standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import sys
import time
from typing import Any

from clover_rt.backend import Backend, DeviceInfo
from clover_rt.errors import CloverError
from clover_rt.plugins import Finding, choose, discover, open_device, probe
from clover_rt.spec import Precision
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.catalog import catalog
from clover_rt_conformance.trial import attempt

ENVIRONMENT = "environment"
"""The note of a DeviceInfo that names variables (`A=1 B=2`) to set before its library loads."""


def main() -> int:
    """Serve orders from standard input until it ends."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(data: dict[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")

    order = json.loads(sys.stdin.readline())
    name, device = order["backend"], order["device"]
    try:
        info, about = describe(name, device)
        wanted = variables(info)
        if any(os.environ.get(k) != v for k, v in wanted.items()):
            answer({"environment": wanted})
            return 0
        bench = Bench(lambda: open_device(name, device)[1])
        about["device"]["name"] = bench.device.name or about["device"]["name"]
    except CloverError as error:
        facts = {k: getattr(error, k) for k in ("what", "evidence", "fix", "code")}
        answer({"error": facts})
        return error.exit_code
    answer({"about": about})
    for line in sys.stdin:
        order = json.loads(line)
        start = time.perf_counter()
        precision = Precision(order["precision"])
        found = attempt(catalog()[order["id"]], bench, precision, order["seed"])
        found.seconds = time.perf_counter() - start
        healthy = not found.outcome.is_wrong or is_healthy(bench)
        answer({"result": found.to_dict(), "healthy": healthy})
    return 0


def is_healthy(bench: Bench) -> bool:
    """Does the device still copy? An error that sticks to it must not be charged to later cases."""
    found = attempt(catalog()["device/copies"], bench, Precision.EXACT)
    return found.outcome.is_right


def describe(name: str, device: str | None) -> tuple[DeviceInfo, dict[str, Any]]:
    """Return the device that would be opened, and what a report says of it and of the plugin.

    Raises BackendUnavailable as `open_device` does.
    """
    found = discover(only=name)
    if name not in found.backends:
        # the same words as where a device is opened
        open_device(name, device)
    item = found.backends[name]
    result = probe(item)
    if isinstance(result, Finding):
        raise result.error()
    info = choose(name, result, device)
    backend: Backend = item.backend
    return info, {
        "device": {
            "id": info.id,
            "name": info.name,
            "kind": info.kind,
            "memory_bytes": info.memory_bytes,
            "is_software": info.is_software,
            "notes": dict(info.notes),
        },
        "plugin": {
            "name": item.plugin,
            "version": item.version,
            "api": list(backend.api),
        },
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
    }


def variables(info: DeviceInfo) -> dict[str, str]:
    """Return the environment that a device's note asks for."""
    pairs = (word.partition("=") for word in info.notes.get(ENVIRONMENT, "").split())
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    sys.exit(main())
