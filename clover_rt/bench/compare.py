"""Two reports side by side, if they were measured alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clover_rt.bench.report import SCHEMA
from clover_rt.errors import BadInput

SUBJECTS = ("model", "backend", "device", "precision", "variables")
"""Settings that may differ: they are what is compared."""
KINDS = ("preview", "preview_of_masks", "decode", "commit", "commit_preview", "prefill")


def read(path: Path) -> dict[str, Any]:
    """Return a report from a file; raises BadInput (CRT-1092) for what is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        evidence = getattr(error, "strerror", None) or str(error)
        raise _no_report(path, evidence) from error
    fields = ("settings", "results", "cpu", "cores")
    if not isinstance(found, dict) or found.get("benchmark") != "pass":
        raise _no_report(path, 'it has no "benchmark": "pass"')
    if found.get("schema") != SCHEMA:
        raise _no_report(
            path, f"its schema is {found.get('schema')!r}; this version reads {SCHEMA}"
        )
    if missing := [f for f in fields if f not in found]:
        raise _no_report(path, f"it has no field {missing[0]!r}")
    if not isinstance(found["settings"], dict):
        raise _no_report(path, f"its settings are {found['settings']!r}")
    if missing := [f for f in SUBJECTS if f not in found["settings"]]:
        raise _no_report(path, f"its settings have no field {missing[0]!r}")
    return found


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Return the times of two reports and the ratios b / a, by depth and kind of pass.

    A ratio below 1 means that b takes less time. Raises BadInput (CRT-1093) where processor or
    settings differ in more than SUBJECTS: such times say nothing about each other.
    """
    unlike = [
        f"{name}: {x!r} and {y!r}"
        for name, x, y in [
            *((n, a[n], b[n]) for n in ("cpu", "cores")),
            *(
                (n, a["settings"].get(n), b["settings"].get(n))
                for n in sorted(a["settings"].keys() | b["settings"].keys())
                if n not in SUBJECTS
            ),
        ]
        if x != y
    ]
    if unlike:
        raise BadInput(
            what="two reports cannot be compared",
            evidence="they were measured unlike: " + "; ".join(unlike),
            fix="measure both on one machine with the same settings but for what is compared",
            code="CRT-1093",
        )
    depths = {r["depth"]: r for r in b["results"]}
    rows = []
    for one in a["results"]:
        other = depths.get(one["depth"])
        for kind in KINDS:
            if other is not None and kind in one and kind in other:
                x, y = _ms(one[kind]), _ms(other[kind])
                row = {"depth": one["depth"], "kind": kind, "a_ms": x, "b_ms": y}
                rows.append({**row, "ratio": y / x})
    subjects = {k: {n: r["settings"][n] for n in SUBJECTS} for k, r in (("a", a), ("b", b))}
    return {"benchmark": "comparison", "schema": SCHEMA, **subjects, "results": rows}


def _ms(timed: dict[str, Any]) -> float:
    """Return the median of a pass, or of prefill the time of all its tokens."""
    if "ms_median" in timed:
        return float(timed["ms_median"])
    return 1e3 * float(timed["tokens"]) / float(timed["tokens_per_s"])


def _no_report(path: Path, evidence: str) -> BadInput:
    return BadInput(
        what=f"{path} is no report of `clover-rt bench`",
        evidence=evidence,
        fix="give files that `clover-rt bench --out FILE` wrote",
        code="CRT-1092",
    )
