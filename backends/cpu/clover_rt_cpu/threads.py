"""How many threads the kernels run on: what was asked for, or as many as help."""

from __future__ import annotations

import operator
import os
from pathlib import Path

from clover_rt.errors import BadInput

VARIABLE = "CLOVER_RT_CPU_THREADS"
TOPOLOGY = Path("/sys/devices/system/cpu")
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
NO_QUOTA = 1 << 20


def default_threads() -> int:
    """Return CLOVER_RT_CPU_THREADS, or the physical cores that this process may use.

    Two processors of one core share what multiplies. A quota of a control group counts too: threads
    above it would only hold each other up. CRT-1062 for a variable that is no such number.
    """
    told = os.environ.get(VARIABLE, "")
    if told:
        return checked(int(told) if told.isdecimal() else told, VARIABLE)
    return max(1, min(cores(processors(), TOPOLOGY), quota(CPU_MAX)))


def checked(count: object, name: str) -> int:
    """Return a number of threads that was asked for.

    Raises BadInput (CRT-1062) unless it is at least 1 and at most the processors that this process
    may use.
    """
    most = len(processors())
    try:
        found = 0 if isinstance(count, bool) else operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        found = 0
    if not 1 <= found <= most:
        raise BadInput(
            what=f"{name}={count!r} was given",
            evidence=f"it is a number of threads; this process may use {most} processors",
            fix=f"use a whole number from 1 to {most}, or leave it out: one for each core",
            code="CRT-1062",
        )
    return found


def processors() -> set[int]:
    """Return the numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def cores(numbers: set[int], topology: Path) -> int:
    """Return how many cores some processors belong to; where that is not told, one for each."""
    found = set()
    for number in numbers:
        path = topology / f"cpu{number}" / "topology" / "thread_siblings_list"
        try:
            found.add(path.read_text().strip())
        except OSError:
            found.add(str(number))
    return len(found)


def quota(path: Path) -> int:
    """Return the processors that a control group allows, rounded up; very many without a limit."""
    try:
        allowed, period = path.read_text().split()
        return -(-int(allowed) // int(period))
    except (OSError, ValueError):
        return NO_QUOTA
