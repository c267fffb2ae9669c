"""`clover-rt backends`: which backends are installed, and why one is not usable."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clover_rt.cli.info import size
from clover_rt.errors import BadInput

if TYPE_CHECKING:
    from clover_rt.api import Status

HELP = "list backends and devices"
DESCRIPTION = """List the backends that are installed, their devices, and for those that cannot be
used the reason."""
EXAMPLES = """  clover-rt backends
  clover-rt backends --why cpu"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `backends`."""
    parser.add_argument("--why", metavar="NAME", help="all that is known of one, with its trace")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the list; return 0. Raises BadInput (CRT-1010) where --why names none of them."""
    from clover_rt.api import survey
    from clover_rt.cli.output import own_output

    # what plugins print while they are asked is no part of the list
    with own_output():
        rows = survey()
    if args.why is not None:
        rows = about(args.why, rows)
    if args.json:
        import json

        print(json.dumps({"schema": 1, "backends": [r.as_dict() for r in rows]}, indent=1))
    elif args.why is not None:
        print("\n\n".join(detail(r) for r in rows))
    else:
        print(table(rows))
    return 0


def about(name: str, rows: Sequence[Status]) -> list[Status]:
    """Return the rows of one backend or plugin."""
    found = [r for r in rows if name in (r.name, r.plugin)]
    if not found:
        import difflib

        known = list(dict.fromkeys(r.name for r in rows))
        near = difflib.get_close_matches(name, known, n=1)
        raise BadInput(
            what=f"--why {name} was requested",
            evidence=f"known: {', '.join(known) or 'none'}",
            fix=f"{f'did you mean {near[0]!r}? ' if near else ''}use one of these names, "
            "or install the plugin",
            code="CRT-1010",
        )
    return found


def table(rows: Sequence[Status]) -> str:
    """Return one line a backend, its devices or its reason below."""
    if not rows:
        return "no backends are installed"
    width = max(len(r.name) for r in rows)
    lines = []
    for r in rows:
        facts = [r.status, r.version, f"API {r.api}" if r.api else ""]
        lines.append(f"{r.name:{width}}  " + "  ".join(f for f in facts if f))
        lines += [f"{'':{width}}  {line}" for text in devices(r) for line in text.splitlines()]
        if r.reason:
            lines.append(f"{'':{width}}  {r.reason.splitlines()[0]}")
            lines.append(f"{'':{width}}  more: clover-rt backends --why {r.name}")
    return "\n".join(lines)


def devices(row: Status) -> list[str]:
    """Return for each device what it is, which engine drives it, and why it is chosen or not.

    The first line has the start of the reason; what it has in more lines is indented below.
    """
    lines = []
    for d in row.devices:
        reason, *more = d.only_by_name.split(";\n")
        reason = reason or ("software" if d.is_software else "")
        facts = [f"engine {d.notes['engine']}"] if "engine" in d.notes else []
        if reason:
            facts.append(f"{reason}: only by --device")
        elif "chosen" in d.notes:
            facts.append(d.notes["chosen"])
        line = f"device {d.id}: {d.name}" + (f" ({'; '.join(facts)})" if facts else "")
        lines.append("\n  ".join((line, *more)))
    return lines


def known(device: Mapping[str, Any]) -> dict[str, str]:
    """Return what is known of a device, given as JSON data, beside its line."""
    memory = {"memory": size(device["memory_bytes"])} if device["memory_bytes"] else {}
    notes = {n: text for n, text in device["notes"].items() if n not in ("engine", "chosen")}
    return {"kind": device["kind"], **memory, **notes}


def detail(row: Status) -> str:
    """Return all that is known of one backend."""
    facts = {
        "backend": row.name,
        "status": row.status,
        "plugin": row.plugin,
        "version": row.version,
        "api": row.api,
        "reason": row.reason,
        "fix": row.fix,
    }
    lines = [f"{key}: {value}" for key, value in facts.items() if value]
    for line, device in zip(devices(row), row.as_dict()["devices"], strict=True):
        lines += [line, *(f"  {name}: {text}" for name, text in known(device).items())]
    return "\n".join(lines + ([row.trace.rstrip()] if row.trace else []))
