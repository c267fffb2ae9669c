"""The command `clover-rt`: parse, call, print. Parsing and --help import nothing heavy."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from clover_rt.cli import (
    backends,
    bench,
    completion,
    conformance,
    doctor,
    fit,
    info,
    new_backend,
    ops,
    quantize,
    run,
    version,
)
from clover_rt.cli.interrupts import Interrupted
from clover_rt.cli.parser import Command, Parser
from clover_rt.errors import BadInput, CloverError

COMMANDS = {
    "run": run,
    "info": info,
    "backends": backends,
    "doctor": doctor,
    "fit": fit,
    "quantize": quantize,
    "bench": bench,
    "ops": ops,
    "new-backend": new_backend,
    "conformance": conformance,
    "version": version,
    "completion": completion,
}
"""Each module has `HELP`, `DESCRIPTION`, `add_arguments(parser)` and `main(args) -> exit code`;
`EXAMPLES`, lines for the end of its help, where there are some."""

DEBUG = "CLOVER_RT_DEBUG"
INTERRUPTED = 130
BROKEN_PIPE = 141
EXIT_CODES = """exit codes:
  0    done
  1    conformance found something wrong
  2    the input: a flag, a prompt, a file of the checkpoint
  3    a backend or device, or numbers that are not finite
  4    a bug in clover-rt
  130  interrupted (143: terminated), 141: the reader of the output is gone"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every command."""
    parser = Parser(
        prog="clover-rt",
        description="Run Clover, a text model that writes by block diffusion.",
        epilog=f"{EXIT_CODES}\n\n`clover-rt COMMAND --help` tells more; {DEBUG}=1 shows traces.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Command)
    for name, module in COMMANDS.items():
        examples = getattr(module, "EXAMPLES", "")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=f"examples:\n{examples}" if examples else None,
        )
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are three lines on stderr."""
    if sys.stderr is None:
        # closed by the caller: print would take stdout in its place
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        return fail(output_error(OSError(errno.EBADF, os.strerror(errno.EBADF))), None)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal that lacks a character shows a replacement instead of ending the run
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    try:
        parser = build_parser()
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        code: int = args.main(args)
        sys.stdout.flush()
        return code
    except CloverError as error:
        return fail(error, error)
    except KeyboardInterrupt as interrupt:
        tell("interrupted")
        return interrupt.exit_code if isinstance(interrupt, Interrupted) else INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        # an error of a file has the file's name, one of the output has none
        if error.errno is None or error.filename is not None:
            return fail(bug(error), error)
        discard(sys.stdout)
        return fail(output_error(error), error)
    except Exception as error:
        return fail(bug(error), error)


def fail(told: CloverError, error: BaseException | None) -> int:
    """Print an error, its trace first where CLOVER_RT_DEBUG=1 asks for it; return the exit code."""
    if error is not None and os.environ.get(DEBUG) == "1":
        import traceback

        tell("".join(traceback.format_exception(error)).rstrip())
    tell(str(told))
    return told.exit_code


def tell(text: str) -> None:
    """Print a line on stderr; where that takes no more, only the exit code is left to tell."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        with contextlib.suppress(OSError):
            discard(sys.stderr)


def bug(error: Exception) -> CloverError:
    """Return the error for what clover-rt should have explained, with where it happened."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return CloverError(
        what="clover-rt failed in a way that it cannot explain; this is a bug in it",
        evidence=f"{type(error).__name__}: {error}{where}",
        fix=f"run it again with {DEBUG}=1, and report the trace with the output of "
        "`clover-rt version --json`",
        code="CRT-9000",
    )


def output_error(error: OSError) -> BadInput:
    """Return the error for an output that takes no more."""
    return BadInput(
        what="the output cannot be written",
        evidence=error.strerror or str(error),
        fix="make room, or send the output elsewhere",
        code="CRT-1025",
    )


def discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that it does not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
