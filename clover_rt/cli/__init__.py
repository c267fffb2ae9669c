"""The command `clover-rt`: parse, call, print. Parsing and --help import nothing heavy."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from clover_rt.cli import backends, run, version
from clover_rt.errors import CloverError

COMMANDS = {"run": run, "backends": backends, "version": version}
"""Each module has `HELP`, `add_arguments(parser)` and `main(args) -> exit code`."""

INTERRUPTED = 130
BROKEN_PIPE = 141
BUG = CloverError.exit_code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every command."""
    parser = argparse.ArgumentParser(
        prog="clover-rt",
        description="Run Clover, a text model that writes by block diffusion.",
        epilog="Exit codes: 0 done, 2 input, 3 backend or device, 4 a bug, 130 interrupted.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.DESCRIPTION)
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are three lines on stderr."""
    args = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal that lacks a character shows a replacement instead of ending the run
        sys.stdout.reconfigure(errors="replace")
    try:
        code: int = args.main(args)
        sys.stdout.flush()
        return code
    except CloverError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader is gone: what is still buffered must not raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        import traceback

        traceback.print_exc()
        bug = CloverError(
            what="an error that clover-rt should have explained",
            evidence=f"{type(error).__name__}: {error}",
            fix="report it with the lines above",
        )
        print(bug, file=sys.stderr)
        return BUG
