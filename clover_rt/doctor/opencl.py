"""OpenCL: registered drivers, and the devices that the loader lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clover_rt.doctor import gpus
from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import TIMED_OUT, Host, Ran
from clover_rt.doctor.question import ask, no_answer

VENDORS = "/etc/OpenCL/vendors"


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `opencl`, and add its GPUs to `gpus`."""
    icds = registered(host)
    out: dict[str, Any] = {"icds": icds, "loader": "", "platforms": []}
    report["opencl"] = out
    for path, library in icds.items():
        if library.startswith("/") and not host.exists(library):
            told = f"{path} names {library}: no such file"
            yield finding("CRT-5402", told, path=path)
    answer = ask(host, ("opencl",))
    if isinstance(answer, Ran):
        yield from blame(host, icds, answer)
        return
    out.update(answer)
    if out["loader"] and not out["platforms"] and not icds and report["gpus"]:
        cards = ", ".join(g["id"] for g in report["gpus"])
        yield finding("CRT-5401", f"{VENDORS}: no .icd file; loader {out['loader']}; GPUs {cards}")
    software = []
    for platform in out["platforms"]:
        for device in platform["devices"]:
            if device["kind"] == "cpu":
                software.append(f"{device['name']} ({platform['name']})")
            else:
                about = {k: device[k] for k in ("id", "name", "driver")}
                gpus.see(report, "opencl", {**about, "memory_total": device["memory"]})
    if software:
        yield finding("CRT-5404", ", ".join(software))


def registered(host: Host) -> dict[str, str]:
    """Return the .icd files of the system or of OCL_ICD_VENDORS, with the library each names."""
    place = host.environ.get("OCL_ICD_VENDORS", VENDORS)
    paths = [place] if place.endswith(".icd") else []
    paths += [f"{place}/{n}" for n in host.names(place) if n.endswith(".icd")]
    return {path: (host.read(path) or "").strip() for path in paths}


def blame(host: Host, icds: dict[str, str], ran: Ran) -> Iterator[Finding]:
    """The loader did not answer with all drivers: ask with each alone and name the bad ones."""
    if not ran.is_started:
        yield no_answer("OpenCL devices", ran, "CRT-5403")
        return
    bad = []
    for path in icds if len(icds) > 1 else ():
        alone = ask(host, ("opencl",), environ={**host.environ, "OCL_ICD_VENDORS": path})
        if isinstance(alone, Ran):
            bad.append((path, alone))
    if not bad:
        bad = [(next(iter(icds), "the OpenCL loader"), ran)]
    for path, end in bad:
        told = f"{path} ({icds.get(path, 'no driver is registered')}): {end.how}"
        if end.state == TIMED_OUT or not end.is_started:
            yield no_answer(f"OpenCL devices, {path}", end, "CRT-5403")
        else:
            yield finding("CRT-5403", told, path=path)
