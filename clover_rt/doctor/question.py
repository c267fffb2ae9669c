"""Ask a library in a child: its answer, or a finding that says how it failed to answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.host import TIMED_OUT, Host, Ran

LIBRARY_S = 30.0


def ask(
    host: Host,
    args: Sequence[str],
    seconds: float = LIBRARY_S,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any] | Ran:
    """Return the child's answer, or how it ended without one."""
    ran = host.child(args, host.environ if environ is None else environ, seconds)
    if not ran.is_fine:
        return ran
    lines = ran.out.strip().splitlines()
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return answer


def no_answer(name: str, ran: Ran, otherwise: str) -> Finding:
    """Return the finding for a child that did not answer.

    A timeout is told as such, and so is a child that was not started, which says nothing of what
    it was to ask; any other end has the code `otherwise`.
    """
    if not ran.is_started:
        return finding("CRT-5003", ran.how)
    code = "CRT-5002" if ran.state == TIMED_OUT else otherwise
    return finding(code, f"{name}: {ran.how}")
