"""`clover-rt doctor`: can this machine run Clover, on what, and what to fix."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from clover_rt.cli import output_file
from clover_rt.cli.output import own_output

HELP = "say what this machine can run, and what to fix"
DESCRIPTION = """Look at the processor, graphics cards, drivers, libraries and backends; run real
kernels and the built-in model on every device; say what is wrong and how to fix it. Names of user,
host and home folder are left out.
Exit codes: 0 a backend works, 1 it works but there are warnings or its device must be named, 2 no
requested backend works."""
EXAMPLES = """  clover-rt doctor
  clover-rt doctor --backend cpu --quick
  clover-rt doctor --report report.txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `doctor`."""
    add = parser.add_argument
    add(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="judge this backend; repeatable (default: every installed one)",
    )
    add("--device", metavar="ID", help="test this device alone (default: all that may be chosen)")
    add("--quick", action="store_true", help="no bandwidth measurement and no model")
    add("--json", action="store_true", help="print one JSON object")
    add(
        "--report",
        type=Path,
        metavar="FILE",
        help="write the report to attach to an issue: text with the data at its end, or JSON where "
        "FILE ends in .json",
    )


def main(args: argparse.Namespace) -> int:
    """Print the report; return its exit code. Raises BadInput (CRT-1090) for an unwritable FILE."""
    from clover_rt.doctor import Host, examine, render

    talks = sys.stderr.isatty()

    def progress(name: str) -> None:
        if talks:
            print(f"\r\033[Klooking at {name} ...", end="", file=sys.stderr, flush=True)

    if args.report is not None:
        output_file.check("--report", args.report)
    with own_output():
        report = examine(Host.here(), args.backend, args.quick, progress, args.device)
    if talks:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if args.report is not None:
        output_file.write("--report", args.report, attachment(args.report, report))
    print(_json(report) if args.json else render(report))
    code: int = report["exit_code"]
    return code


def attachment(path: Path, report: dict[str, Any]) -> str:
    """Return what goes into a report's file: JSON alone for a name that ends in .json."""
    from clover_rt.doctor import render

    text = _json(report)
    return text if path.suffix == ".json" else f"{render(report)}\n\n{text}"


def _json(report: dict[str, Any]) -> str:
    import json

    return json.dumps(report, indent=1, ensure_ascii=False)
