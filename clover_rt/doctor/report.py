"""Run every probe and judge: a dict that says what is here, what is wrong, and the exit code."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clover_rt import __version__
from clover_rt.doctor import (
    amd,
    backends,
    cpu,
    frameworks,
    gpus,
    nvidia,
    opencl,
    overrides,
    storage,
    system,
    vulkan,
)
from clover_rt.doctor.findings import CODES, Finding, Severity, finding
from clover_rt.doctor.host import Host
from clover_rt.doctor.redact import redact

SCHEMA = 1
USABLE, WARNINGS, UNUSABLE = 0, 1, 2
Probe = Callable[[Host, dict[str, Any]], Iterator[Finding]]
PROBES: dict[str, Probe] = {
    "system": system.probe,
    "cpu": cpu.probe,
    "variables": overrides.probe,
    "gpus": gpus.probe,
    "amd": amd.probe,
    "nvidia": nvidia.probe,
    "opencl": opencl.probe,
    "vulkan": vulkan.probe,
    "frameworks": frameworks.probe,
    "storage": storage.probe,
}
EMPTY: dict[str, Any] = {
    "system": {"container": "", "is_wsl": False, "user_namespace": "", "packages": {}},
    "cpu": {"last_level_cache_bytes": 0, "usable_cores": 1},
    "memory": {"total": 0, "available": 0, "limit": None},
    "variables": {},
    "gpus": [],
    "amd": {"nodes": [], "topology": []},
    "nvidia": {"driver": "", "nodes": []},
    "opencl": {"icds": {}, "loader": "", "platforms": []},
    "vulkan": {"icds": [], "loader": "", "devices": []},
    "torch": None,
    "triton": None,
    "storage": [],
    "backends": [],
    "tests": [],
}
"""What each probe fills in, as it is before: a probe that fails leaves it to the others so."""


def examine(
    host: Host,
    wanted: Sequence[str] = (),
    quick: bool = False,
    on_progress: Callable[[str], None] = lambda name: None,
    device: str | None = None,
) -> dict[str, Any]:
    """Return the whole report, redacted; raises nothing.

    wanted       names of backends to judge; none: all that are installed
    quick        no measurement of bandwidth and no model: some kernels of each device only
    on_progress  told the name of each probe before it runs
    device       id or name of the one device to test
    """
    # a deep copy of plain data: probes fill lists in place
    report: dict[str, Any] = {key: _copy(value) for key, value in EMPTY.items()}
    probes: dict[str, Probe] = dict(PROBES)
    if not quick:
        probes["memory bandwidth"] = cpu.measure
    probes["backends"] = lambda h, r: backends.probe(h, r, wanted, device)
    probes["cards"] = lambda h, r: gpus.judge(r)
    probes["tests"] = lambda h, r: backends.test(h, r, wanted, device, quick)
    found: list[Finding] = []
    for name, probe in probes.items():
        on_progress(name)
        try:
            # one by one: what was found before a failure stays
            for item in probe(host, report):
                # one cause can meet several questions, and is told once
                if item not in found:
                    found.append(item)
        # whatever goes wrong in a probe is a finding, never the end of doctor
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            told = f"probe {name}: {type(error).__name__}: {error} ({where.name}:{where.lineno})"
            found.append(finding("CRT-5001", told))
    code = exit_code(report, found)
    out = {
        "schema": SCHEMA,
        "version": __version__,
        "exit_code": code,
        "verdict": verdict(report, code),
        "findings": [as_dict(f) for f in by_severity(found)],
        "requested": list(wanted),
        "device": device,
        **report,
    }
    result: dict[str, Any] = redact(out, host)
    return result


def exit_code(report: dict[str, Any], found: Sequence[Finding]) -> int:
    """Return 0 usable, 1 usable but something is to be done, 2 no requested backend works.

    Naming a device is something to be done too.
    """
    passed = [row for row in report["tests"] if row["passed"]]
    if not passed:
        return UNUSABLE
    todo = any(f.kind.severity is not Severity.INFO for f in found)
    return WARNINGS if todo or all(row["only_by_name"] for row in passed) else USABLE


def verdict(report: dict[str, Any], code: int) -> str:
    passed = [row for row in report["tests"] if row["passed"]]
    taken = [_where(row) for row in passed if not row["only_by_name"]]
    failed = [_where(row) for row in report["tests"] if not row["passed"]]
    if report["tests"] and not any(row["is_tried"] for row in report["tests"]):
        return "no backend could be tried; see the findings"
    if code == UNUSABLE:
        why = f"{', '.join(failed)} failed" if failed else "no requested backend can be used"
        return f"Clover does not run here: {why}"
    tail = "; see the findings" if code == WARNINGS else ""
    if taken:
        return f"Clover runs here on {', '.join(taken)}{tail}"
    # the first clause: findings and the list of backends have the rest
    told = "; ".join(f"{_where(row)}: {row['only_by_name'].partition(';')[0]}" for row in passed)
    chosen = f"--backend {passed[0]['backend']} --device {passed[0]['device']}"
    return f"Clover runs here only with `{chosen}`, not by itself: {told}{tail}"


def _where(row: dict[str, Any]) -> str:
    return f"{row['backend']} ({row['device']})"


def by_severity(found: Sequence[Finding]) -> list[Finding]:
    order = list(Severity)
    return sorted(found, key=lambda f: order.index(f.kind.severity))


def as_dict(item: Finding) -> dict[str, str]:
    kind = CODES[item.code]
    return {
        "code": item.code,
        "severity": kind.severity.value,
        "what": kind.what,
        "evidence": item.evidence,
        "remedy": item.remedy,
        "link": kind.link,
    }


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return list(value) if isinstance(value, list) else value
