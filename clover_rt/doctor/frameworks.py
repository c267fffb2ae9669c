"""torch and triton: what they were built for, against the cards that are here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from clover_rt.doctor import gpus
from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import Host, Ran
from clover_rt.doctor.question import ask, no_answer

IMPORT_S = 90.0
SELECTOR = "that the selector of https://pytorch.org/get-started/locally/ shows"
INSTALL = {
    "AMD": f"the newest one for ROCm {SELECTOR}",
    "NVIDIA": f"the newest one for CUDA {SELECTOR}",
}
# the oldest Linux driver that runs programs of a CUDA major version: NVIDIA's compatibility table
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `torch` and `triton`; neither is imported where it is not installed."""
    report["torch"] = report["triton"] = None
    for name in ("torch", "triton"):
        if name not in host.packages:
            continue
        answer = ask(host, (name,), IMPORT_S)
        if isinstance(answer, Ran):
            told = f"{name} {host.packages[name]}"
            yield no_answer(f"import {told}", answer, "CRT-5303")
        else:
            report[name] = answer
    if report["torch"] is not None:
        for device in report["torch"]["devices"]:
            gpus.see(report, "torch", device)
        yield from judge(report)


def judge(report: dict[str, Any]) -> Iterator[Finding]:
    """Compare torch's build with the cards."""
    torch = report["torch"]
    built = "AMD" if torch["hip"] else "NVIDIA" if torch["cuda"] else ""
    cards = [g for g in report["gpus"] if g["vendor"] in INSTALL and g["kind"] != "integrated"]
    cards = cards or [g for g in report["gpus"] if g["vendor"] in INSTALL]
    mine = [g for g in cards if g["vendor"] == built]
    if cards and not mine:
        vendor = cards[0]["vendor"]
        told = f"torch {torch['version']} is built for {built or 'the CPU alone'}; {_list(cards)}"
        yield finding("CRT-5302", told, install=INSTALL[vendor])
        return
    old = driver_too_old(report)
    if old:
        yield old
    without = [g for g in mine if g["arch"] and not runs(g["arch"], torch["arch_list"])]
    if without:
        told = f"torch {torch['version']} has {', '.join(torch['arch_list'])}; {_list(without)}"
        arch, install = without[0]["arch"], INSTALL[built]
        yield finding("CRT-5301", told, arch=arch, install=install)
    shown = [g for g in mine if not g["hidden_by"] and g not in without]
    shut = any(n["problem"] for key in ("amd", "nvidia") for n in report[key]["nodes"])
    if shown and not torch["is_available"] and not old and not shut:
        told = f"torch.cuda.is_available() is False with torch {torch['version']}; {_list(shown)}"
        yield finding("CRT-5304", told)


def driver_too_old(report: dict[str, Any]) -> Finding | None:
    """Compare the NVIDIA driver with the CUDA that torch was built for."""
    torch, driver = report["torch"], report["nvidia"]["driver"]
    if not torch["cuda"] or not driver:
        return None
    need = OLDEST_DRIVER.get(int(torch["cuda"].split(".")[0]))
    have = tuple(int(n) for n in re.findall(r"\d+", driver)[:2])
    if need is None or have >= need:
        return None
    oldest = ".".join(map(str, need))
    told = f"driver {driver}; torch {torch['version']} is built for CUDA {torch['cuda']}"
    return finding("CRT-5202", f"{told}, which needs {oldest}", need=oldest)


def runs(arch: str, built: Sequence[str]) -> bool:
    """Return whether code for these architectures runs on a device.

    AMD: the same name. NVIDIA: machine code of the same major and no newer minor, or the
    portable form (compute_NN) of an older one.
    """
    if not arch.startswith("sm_"):
        return arch in built
    have = _capability(arch)
    for name in built:
        if name.startswith("sm_") and _capability(name)[0] == have[0] and _capability(name) <= have:
            return True
        if name.startswith("compute_") and _capability(name) <= have:
            return True
    return False


def _capability(name: str) -> tuple[int, int]:
    digits = re.sub(r"\D", "", name)
    return int(digits[:-1]), int(digits[-1])


def _list(cards: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{g['id']} is {g['arch'] or g['name']}" for g in cards)
