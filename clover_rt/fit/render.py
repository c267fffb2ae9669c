"""The report as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PARTS = {
    "prepared": "weights, repacked",
    "mapped": "weights, mapped from the files",
    "kv": "key and value cache",
    "recurrent": "recurrent state and tapes",
    "tables": "tables",
    "step": "step table",
    "workspace": "activations",
    "scratch": "scratch",
}


def render(report: Mapping[str, Any]) -> str:
    """Return the report of `fit.report` for a reader."""
    return "\n".join(_lines(report))


def size(nbytes: int) -> str:
    """Return a size with three digits or so; 1 GB is 1e9 bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.{1 if nbytes >= 100 * scale else 2}f} {unit}"
    return f"{nbytes} B"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    model = report["model"]
    yield (
        f"{model['type']}, {model['layers']} layers, {model['parameters']:,} parameters, "
        f"context up to {model['context']}"
    )
    yield ""
    total = sum(row["bytes"] for row in report["weights"])
    yield f"weights on disk {size(total)}"
    for row in report["weights"]:
        form = row["format"] + (f"-{row['group']}" if row["group"] else "")
        share = 100 * row["bytes"] / total if total else 0.0
        yield f"  {row['class']:14s} {form:7s} {size(row['bytes']):>10s} {share:5.1f} %"
    for device in report["devices"]:
        if device["total"]:
            yield ""
            yield from _device(device, report)
    yield ""
    yield from _budgets(report)
    whole = all(b["largest_context"] == model["context"] for b in report["budgets"])
    if report["storage"] and not whole:
        yield ""
        yield from _storage(report)


def _device(device: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"on {device['name']} ({device['place']}): {size(device['total'])} at a context of "
        f"{report['context']}, {report['slots']} slots, precision {report['precision']}"
    )
    for key, name in PARTS.items():
        if device[key]:
            yield f"  {name:32s} {size(device[key]):>10s}"
    if device["is_over_binding"]:
        yield (
            f"  its largest buffer, {size(device['largest_buffer'])}, is over what one binding "
            f"holds, {size(device['largest_binding'])}: lower the context or the slots"
        )


def _budgets(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'does it fit in':30s} {'reserve':>10s} {'largest context':>16s}"
    for b in report["budgets"]:
        free = f" ({size(b['bytes'])} free)" if b["name"] == "this machine" else ""
        verdict = "yes" if b["fits"] else f"no, {size(b['short'])} short"
        context = _context(b["largest_context"])
        yield f"  {b['name'] + free:28s} {size(b['reserve']):>10s} {context:>16s}  {verdict}"


def _storage(report: Mapping[str, Any]) -> Iterator[str]:
    names = [b["name"] for b in report["budgets"]]
    yield "largest context if the weights were stored as"
    yield f"  {'':26s} {'weights':>9s} " + " ".join(f"{n:>12s}" for n in names)
    for row in report["storage"]:
        contexts = " ".join(f"{_context(row['largest_context'][n]):>12s}" for n in names)
        yield f"  {row['name']:26s} {size(row['weights']):>9s} {contexts}"


def _context(tokens: int) -> str:
    return str(tokens) if tokens else "none"
