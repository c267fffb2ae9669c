"""Backends: which are usable, and real kernels and the built-in model on each of their devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clover_rt.doctor import trials
from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import TIMED_OUT, Host, Ran
from clover_rt.doctor.question import ask, no_answer
from clover_rt.doctor.survey import BROKEN
from clover_rt.ops import HOT
from clover_rt.plugins import Status, only_by_name

# on a new card most of it is compiling
KERNELS_S = 300.0
# the first pass on a Radeon may try graphs before, for up to 300 s
MODEL_S = 420.0
REFERENCE = "cpu"
OWN = ("cuda", "rocm", "vulkan")
"""Backends that are always installed: not every machine has their cards."""


def probe(
    host: Host, report: dict[str, Any], wanted: Sequence[str], named: str | None
) -> Iterator[Finding]:
    """Fill `backends` with the state of each; those that are not wanted are listed, not judged."""
    rows = host.backends()
    report["backends"] = [as_dict(row) for row in rows]
    for name in wanted:
        if name not in [row.name for row in rows]:
            known = ", ".join(row.name for row in rows) or "none"
            yield finding("CRT-5702", f"--backend {name}; installed: {known}")
    for row in rows:
        if wanted and row.name not in wanted:
            continue
        if row.status != "usable":
            fix = row.fix or f"see `clover-rt backends --why {row.name}`"
            has_nothing = row.status != BROKEN and row.name in OWN
            code = "CRT-5704" if has_nothing and not wanted else "CRT-5701"
            yield finding(code, f"{row.name}: {row.reason}", fix=fix)
        elif named is None and all(only_by_name(d) for d in row.devices):
            names = "; ".join(f"{d.id} ({d.name}): {only_by_name(d)}" for d in row.devices)
            chosen = f"--backend {row.name} --device {row.devices[0].id}"
            yield finding("CRT-5703", f"{row.name}: {' '.join(names.split())}", chosen=chosen)


def as_dict(row: Status) -> dict[str, Any]:
    """Return a status for the report: with why each device is opened by its name, and no trace."""
    told = row.as_dict()
    del told["trace"]
    for entry, info in zip(told["devices"], row.devices, strict=True):
        entry["only_by_name"] = only_by_name(info)
    return told


def test(
    host: Host, report: dict[str, Any], wanted: Sequence[str], named: str | None, quick: bool
) -> Iterator[Finding]:
    """Fill `tests`: for each device its trials, its kernels, one block of the built-in model.

    Devices that are not chosen by themselves are tested only where their backend was asked for. A
    device that is named is tested alone.
    """
    report["tests"] = rows = []
    usable = [b for b in report["backends"] if b["status"] == "usable"]
    judged = [b for b in usable if not wanted or b["name"] in wanted]
    for backend in judged:
        name = backend["name"]
        for info, reason in candidates(backend["devices"], named):
            if info["only_by_name"] and name not in wanted and named is None:
                continue
            row: dict[str, Any] = {"backend": name, "device": info["id"], "only_by_name": reason}
            row |= {"passed": False, "is_tried": True}
            rows.append(row)
            if not quick and trials.may_have(backend["api"]):
                yield from alone(host, row)
            # what fails alone would fail again
            if not row.get("problems"):
                yield from kernels(host, row)
                if not quick:
                    yield from model(host, row, rows)
            row["passed"] = not row.get("problems")
    if named is not None and not rows:
        known = [f"{d['id']} ({d['name']})" for b in judged for d in b["devices"]]
        yield finding("CRT-5705", f"--device {named}; devices: {', '.join(known) or 'none'}")


def candidates(
    devices: Sequence[dict[str, Any]], named: str | None
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield devices, each with why `run` does not take it; "" for the one that it takes."""
    if named is not None:
        exact = [d for d in devices if d["id"] == named]
        for info in exact or [d for d in devices if d["name"].casefold() == named.casefold()]:
            yield info, ""
        return
    first = next((d["id"] for d in devices if not d["only_by_name"]), "")
    for info in devices:
        behind = "" if info["id"] == first else f"{first} comes first"
        yield info, info["only_by_name"] or behind


def alone(host: Host, row: dict[str, Any]) -> Iterator[Finding]:
    """Try what the device lists, such as each of its shaders, one by one in children."""
    where = f"{row['backend']} on {row['device']}"
    row["tried_alone"], failed = trials.ask(host, row["backend"], row["device"])
    if failed:
        row["problems"] = failed
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        yield finding("CRT-5807", f"{where}: {'; '.join(failed[:3])}{more}")


def kernels(host: Host, row: dict[str, Any]) -> Iterator[Finding]:
    """Run cases of the device's kernels in a child, and judge what it says."""
    name, device_id = row["backend"], row["device"]
    where = f"{name} on {device_id}"
    answer = ask(host, ("kernels", name, device_id), KERNELS_S)
    if isinstance(answer, Ran):
        row["problems"] = [f"kernels: {answer.how}"]
        if answer.is_started:
            yield finding("CRT-5802", f"{where}: running its kernels: {answer.how}")
        else:
            row["is_tried"] = False
            yield no_answer(where, answer, "CRT-5802")
        return
    row["kernels"] = answer
    tuned = answer.get("tuning")
    if tuned and not tuned["table"]:
        yield finding("CRT-5808", f"{where}: none for {tuned['arch']}", arch=tuned["arch"])
    wrong = [w for op in answer["ops"] for w in op["wrong"]]
    if answer["copy"]:
        wrong.insert(0, f"copy: {answer['copy']}")
    ran = sum(op["right"] + len(op["wrong"]) for op in answer["ops"])
    if wrong:
        row["problems"] = wrong
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        yield finding("CRT-5801", f"{where}: {'; '.join(wrong[:3])}{more}")
    elif not answer["ops"]:
        yield finding("CRT-5806", where)
        return
    elif not ran:
        row["problems"] = ["no kernel took any case"]
        yield finding("CRT-5802", f"{where}: no kernel took any case")
    missing = [op for op in HOT if op in answer["declined"]]
    if missing:
        yield finding("CRT-5805", f"{where}: {', '.join(missing)}")


def model(host: Host, row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Run the built-in model for one block in a child, and compare it with the cpu backend's."""
    name, device_id = row["backend"], row["device"]
    answer = ask(host, ("model", name, device_id), MODEL_S)
    if isinstance(answer, Ran):
        how = "timed out" if answer.state == TIMED_OUT else answer.how
        row.setdefault("problems", []).append(f"model: {how}")
        if answer.is_started:
            told = f"{name} on {device_id}: {answer.how}"
            yield finding("CRT-5803", told, backend=name)
        else:
            yield no_answer(name, answer, "CRT-5803")
        return
    row["model"] = answer
    reference = next((r["model"] for r in rows if r["backend"] == REFERENCE and "model" in r), None)
    if reference is not None and reference["tokens"] != answer["tokens"]:
        told = f"{name} on {device_id}: {answer['text']!r}; cpu: {reference['text']!r}"
        yield finding("CRT-5804", told, backend=name)
