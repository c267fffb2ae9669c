"""What a result consists of, as plain data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clover_rt.fit.render import size
from clover_rt.quantise.rules import Choice
from clover_rt.quantise.shards import Shard

SCHEMA = 1
AS_IT_IS = "as it is"


def report(choices: Sequence[Choice], shards: Sequence[Shard]) -> dict[str, Any]:
    """Return sizes by class of tensor and format, largest first; all sizes in bytes."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for choice in choices:
        form = AS_IT_IS if choice.format is None else choice.format.value
        key = (choice.kind, form, choice.group)
        new = dict.fromkeys(("tensors", "parameters", "bytes_before", "bytes_after"), 0)
        row = rows.setdefault(
            key, {"class": choice.kind, "format": form, "group": choice.group, **new}
        )
        row["tensors"] += 1
        row["parameters"] += choice.parameters
        row["bytes_before"] += choice.view.nbytes
        row["bytes_after"] += choice.nbytes
    return {
        "schema": SCHEMA,
        "classes": sorted(rows.values(), key=lambda row: -row["bytes_after"]),
        "bytes_before": sum(choice.view.nbytes for choice in choices),
        "bytes_after": sum(choice.nbytes for choice in choices),
        "shards": [{"name": shard.name, "bytes": shard.nbytes} for shard in shards],
    }


def render(found: Mapping[str, Any]) -> str:
    """Return a report for a reader."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'class':14s} {'format':8s} {'tensors':>8s} {'before':>10s} {'after':>10s}"
    for row in found["classes"]:
        form = row["format"] + (f"-{row['group']}" if row["group"] else "")
        before, after = size(row["bytes_before"]), size(row["bytes_after"])
        yield f"{row['class']:14s} {form:8s} {row['tensors']:8d} {before:>10s} {after:>10s}"
    before, after = size(found["bytes_before"]), size(found["bytes_after"])
    yield f"{'total':32s} {before:>10s} {after:>10s}"
    if found["skipped"]:
        left = ", ".join(f"{n} tensors {name}" for name, n in found["skipped"].items())
        yield f"left out: {left}"
    if found["verified"] is not None:
        yield ""
        yield "relative error (root of the mean square)"
        for row in found["verified"]["classes"]:
            yield f"{row['class']:14s} {row['format']:8s} {row['relative_error']:.3%}"
        worst = found["verified"]["worst"]
        if worst is not None:
            yield f"worst: {worst['tensor']} {worst['relative_error']:.3%}"
    if found["dry_run"]:
        yield f"nothing was written; {found['target']} would have {_count(found)}"
    else:
        yield f"wrote {found['target']}: {_count(found)}"


def _count(found: Mapping[str, Any]) -> str:
    count = len(found["shards"])
    return f"{count} file{'s' if count > 1 else ''} of weights"
