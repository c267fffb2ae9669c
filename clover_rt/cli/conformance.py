"""`clover-rt conformance`: judge a backend by every contract, and by whole tiny models."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from clover_rt.cli import output_file
from clover_rt.cli.parser import number, positive
from clover_rt.errors import BadInput

HELP = "judge a backend: what is right, wrong, declined, untested"
DESCRIPTION = """Run the conformance suite on a device of a backend: every case of every operation's
contract, cases made from those, and whole tiny models against golden data. Each failure names its
class of bug and prints the command that runs it again. Exit code 0: everything that was tried is
right; 1: something is wrong, a required operation was declined, or no case was run."""
EXAMPLES = """  clover-rt conformance --backend cpu --op rope,rms_norm
  clover-rt conformance --backend cpu --class K-12 --precision exact
  clover-rt conformance --backend cpu --op block_scan --require block_scan --json report.json
  clover-rt conformance --list --op rope"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `conformance`."""
    parser.add_argument("--backend", default="cpu", metavar="NAME", help="default: cpu")
    parser.add_argument(
        "--device", metavar="ID", help="a device of it; software devices run only when named"
    )
    choose = parser.add_argument_group("which cases; lists are separated by commas")
    choose.add_argument("--op", action="append", default=[], metavar="OP", help="of these ops")
    choose.add_argument(
        "--case", action="append", default=[], metavar="ID", help="these, or with * and ?"
    )
    choose.add_argument(
        "--class", dest="classes", action="append", default=[], metavar="K-NN", help="these classes"
    )
    choose.add_argument("--precision", choices=("exact", "fast"), help="default: both")
    choose.add_argument("--lane", choices=("usual", "full"), default="usual", help="full: all")
    choose.add_argument("--seed", type=whole, default=0, help="other numbers, same cases")
    choose.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="OP",
        help="declining these is a failure; `hot`: the three that decide speed",
    )
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    parser.add_argument(
        "--json", metavar="FILE", help="write the report or list as JSON; - for stdout"
    )
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=120.0,
        metavar="S",
        help="a case without an answer for so long has hung (default 120)",
    )
    parser.add_argument(
        "--env",
        action="append",
        type=variable,
        default=[],
        metavar="NAME=VALUE",
        help="set for the process that opens the device",
    )


def main(args: argparse.Namespace) -> int:
    """Run the suite, print and write its report; return 0 or 1.

    Raises BadInput: CRT-1060 for an op, case or class that no case has, CRT-1061 for a list as
    JUnit, CRT-1090 for a file that cannot be written, which is told before anything runs. Raises
    BackendUnavailable where the device cannot be opened.
    """
    if args.list and args.junit is not None:
        raise BadInput(
            what="--list and --junit were given",
            evidence="--list runs no case, so there are no results to write",
            fix="leave one of them out; --list --json FILE writes the list",
            code="CRT-1061",
        )
    json_file = None if args.json in (None, "-") else Path(args.json)
    for flag, file in (("--json", json_file), ("--junit", args.junit)):
        if file is not None:
            output_file.check(flag, file)
    # the one place where the core reaches for the suite, and only when it is asked for
    from clover_rt_conformance import command

    asked = command.Asked(
        backend=args.backend,
        device=args.device,
        ops=words(args.op),
        cases=tuple(args.case),
        classes=words(args.classes),
        precision=args.precision,
        is_full=args.lane == "full",
        seed=args.seed,
        require=words(args.require),
        environment=dict(args.env),
        timeout_s=args.timeout,
    )
    if args.list:
        text, data, passed = command.listing(asked), command.listing_data(asked), True
    else:
        report = command.judge(asked, on_progress=progress if sys.stderr.isatty() else None)
        text, data, passed = command.text(report), report.to_dict(), report.passed
    print(json.dumps(data, indent=1) if args.json == "-" else text)
    if json_file is not None:
        output_file.write("--json", json_file, json.dumps(data, indent=1))
    if args.junit is not None:
        output_file.write("--junit", args.junit, report.junit())
    return 0 if passed else 1


def words(lists: list[str]) -> tuple[str, ...]:
    """Return the words of comma lists."""
    return tuple(w.strip() for text in lists for w in text.split(",") if w.strip())


def whole(text: str) -> int:
    """Parse an integer of at least 0, for argparse."""
    return 0 if text == "0" else positive(text)


def seconds(text: str) -> float:
    """Parse a time above 0, for argparse."""
    value = number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def variable(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE, for argparse."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def progress(done: int, total: int, result: Any) -> None:
    """Show on the terminal how far the run is."""
    end = "\n" if done == total else ""
    line = f"{done}/{total} {result.id}"
    print(f"\r{line[:78]:78}", end=end, file=sys.stderr, flush=True)
