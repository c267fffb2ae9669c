"""Trials: what a device lists is tried one by one in children, so that what crashes has a name."""

from __future__ import annotations

import faulthandler
from typing import Any

from clover_rt.doctor.host import Host
from clover_rt.plugins import open_device

TRIAL_S = 60
CHILD_S = 1200.0
# the version of the plugin API that trials came with
SINCE = (1, 2)
# after so many ends of a child the rest is not tried
MOST_ENDS = 5
TRYING, FAILED = "trying: ", "failed: "
HUNG = "Timeout ("
"""How faulthandler begins what it tells before it ends a process."""


def may_have(api: str) -> bool:
    """Return whether a backend that was written for a version of the plugin API can have trials."""
    return bool(api) and tuple(map(int, api.split("."))) >= SINCE


def run(backend: str, device: str, first: str) -> dict[str, Any]:
    """Try everything from number `first` on, and tell of each as it comes; runs in a child."""
    opened = open_device(backend, device)[1]
    for name, trial in list(opened.trials().items())[int(first) :]:
        print(f"{TRYING}{name}", flush=True)
        # ends the process from a thread that needs no Python: a driver that hangs lets nothing in
        faulthandler.dump_traceback_later(TRIAL_S, exit=True)
        try:
            trial()
        except Exception as error:
            told = " ".join(str(error).split())
            print(f"{FAILED}{name}: {told or type(error).__name__}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    opened.close()
    return {}


def ask(host: Host, backend: str, device: str) -> tuple[int, list[str]]:
    """Return how many were tried, and those that failed with the reason.

    Where not even the first is reached, something else is wrong, which running the kernels tells.
    """
    tried, ends = 0, 0
    failed: list[str] = []
    while ends < MOST_ENDS:
        ran = host.child(("trials", backend, device, str(tried)), host.environ, CHILD_S)
        lines = ran.out.splitlines()
        names = [line.removeprefix(TRYING) for line in lines if line.startswith(TRYING)]
        failed += [line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)]
        tried += len(names)
        if ran.is_fine or not names:
            break
        is_hung = HUNG in ran.err
        how = f"took more than {TRIAL_S} s" if is_hung else ran.how
        failed.append(f"{names[-1]}: {how}")
        ends += 1
    return tried, failed
