"""Judges a range of mutants: `python -m tests.fuzz.runner KIND FIRST COUNT`, in its own process.

Prints a line for every mutant that was handled wrongly, with the command that repeats it, and at
the end one JSON object: mutants, opened, failures, peak_bytes.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType

from tests.fuzz.targets import TARGETS

CPU_SECONDS = 20
ADDRESS_BYTES = 2**31


class Hang(BaseException):
    """A mutant that takes too long; no Exception, so that nothing handles it."""


def ring(signum: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {CPU_SECONDS} seconds of CPU time")


def judge(kind: str, seed: int) -> tuple[bool, str]:
    """Return whether a mutant opened, and what was wrong with that, or ""."""
    # the string is the seed: random.Random hashes it the same way everywhere
    rng = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as name:
        target = TARGETS[kind](Path(name))
        target.spoil(rng)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            return target.check(), ""
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            return False, f"{type(error).__name__} at {place}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def peak_bytes() -> int:
    """Return the largest resident size of this program.

    Not getrusage's: that counts what the parent had when it started this process.
    """
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith("VmHWM"))


def main(kind: str, first: int, count: int) -> int:
    signal.signal(signal.SIGPROF, ring)
    # what would take all memory of the machine fails instead
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    opened, failures = 0, 0
    for seed in range(first, first + count):
        ok, problem = judge(kind, seed)
        opened += ok
        if problem:
            failures += 1
            print(f"python -m tests.fuzz.runner {kind} {seed} 1   # {problem}")
    report = {
        "mutants": count,
        "opened": opened,
        "failures": failures,
        "peak_bytes": peak_bytes(),
    }
    print(json.dumps(report))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
