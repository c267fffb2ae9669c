"""May passes be recorded and replayed on a card? A child process tries it once, and may crash.

HIP graphs have crashed on some architectures. So recording is off until `trial` has passed in a
process of its own on this architecture, driver, torch and version of clover-rt. The outcome is
kept. That a trial runs is kept too, before it starts: one that was cut short by a restart of the
machine may have hung it, and is not started again. One that was only stopped is.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from clover_rt.backend import DeviceInfo
from clover_rt.cache import cache_folder, write

Tell = Callable[[int, int, str], None]
"""Told (seconds gone, seconds that it may take, what) while the trial runs."""
Trial = Callable[[DeviceInfo, Tell], str]
TRIAL_S = 300
LAST_S = 5.0
TRYING = "compiling for a trial of recorded passes, once for this card, driver and torch"
NO_MEMORY = 75
"""Exit code of a trial that the card had no memory for."""
STOPS = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))
BOOT = Path("/proc/sys/kernel/random/boot_id")

PASSED = "passed"
STARTED = "started"
STOPPED = "an earlier trial was stopped"
RUNNING = "another process tries it now"
HUNG = "an earlier trial did not end, and the machine may have hung"


class NotTried(Exception):
    """A trial did not come to an end, for a reason that says nothing of the card."""


def is_safe(
    info: DeviceInfo, tell: Tell, trial: Trial | None = None, folder: Path | None = None
) -> bool:
    """Return whether the trial has passed on such a card; run it where it was not tried yet.

    trial  device, tell -> "" where it passed, else what went wrong; or raises NotTried
    """
    path = _path(info, folder)
    outcome, is_final = _known(path)
    if is_final:
        return outcome == PASSED
    started = {"outcome": STARTED, "boot": _boot(), "process": _process(os.getpid())}
    _keep(path, info, started)
    # where nothing can be kept, a machine that hangs would try again at each start
    if not started.items() <= _kept(path).items():
        return False
    outcome, is_final = STOPPED, False
    try:
        outcome = (child if trial is None else trial)(info, tell) or PASSED
        is_final = True
    except NotTried as error:
        outcome = str(error)
    # and where a signal ends this program
    finally:
        _keep(path, info, {"outcome": outcome, "is_final": is_final})
    return outcome == PASSED


def told(info: DeviceInfo, folder: Path | None = None) -> str:
    """Return what is known of recording on such a card, for people; "" where it was not tried."""
    path = _path(info, folder)
    outcome, is_final = _known(path)
    if outcome in ("", PASSED):
        return "passes are recorded as graphs" if outcome else ""
    if outcome == RUNNING:
        again = ""
    elif is_final:
        again = f" (to try again, remove {path.parent})"
    else:
        again = " (the next run tries again)"
    return f"passes are not recorded: {outcome}{again}"


def child(info: DeviceInfo, tell: Tell) -> str:
    """Run the trial in a process of its own; return "" or what went wrong."""
    command = [sys.executable, "-m", "clover_rt_rocm.hip.trial", info.id]
    # nothing is written: the trial sees it close where this process is killed
    stdin, held = os.pipe()
    with os.fdopen(held, "wb"):
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise NotTried(f"the trial cannot be started: {error}") from error
        finally:
            os.close(stdin)
        try:
            said = _wait(process, tell)
        finally:
            _end(process)
    tell(TRIAL_S, TRIAL_S, TRYING)
    if said is None:
        return f"the trial did not end in {TRIAL_S} s"
    code, last = process.returncode, (said.strip().splitlines() or ["it said nothing"])[-1]
    if -code in STOPS:
        raise NotTried(f"the trial was stopped by {signal.Signals(-code).name}")
    if code == NO_MEMORY:
        raise NotTried(last)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the trial ended by {how}: {last}" if code else ""


def _wait(process: subprocess.Popen[str], tell: Tell) -> str | None:
    """Return what a trial said on stderr when it ended; None where its time is over first."""
    for second in range(TRIAL_S):
        tell(second, TRIAL_S, TRYING)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)[1]
    return None


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a trial that still runs; one that a driver holds is left behind."""
    if process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=LAST_S)


def _path(info: DeviceInfo, folder: Path | None) -> Path:
    about = {k: v for k, v in info.notes.items() if k != "chosen"}
    key = json.dumps([about, metadata.version("clover-rt")], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()
    return (cache_folder("hip-graphs") if folder is None else folder) / f"{name}.json"


def _keep(path: Path, info: DeviceInfo, outcome: Mapping[str, Any]) -> None:
    write(path, json.dumps({**info.notes, "name": info.name, **outcome}, indent=1).encode())


def _kept(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _known(path: Path) -> tuple[str, bool]:
    """Return the outcome of the last trial, "" for none, and whether no other follows."""
    kept = _kept(path)
    outcome = str(kept.get("outcome", ""))
    if outcome != STARTED:
        return outcome, bool(kept.get("is_final"))
    boot, process = _boot(), str(kept.get("process", ""))
    if not boot or kept.get("boot") != boot:
        return HUNG, True
    pid = process.partition(" ")[0]
    runs = pid.isdigit() and _process(int(pid)) == process
    return (RUNNING, True) if runs else (STOPPED, False)


def _boot() -> str:
    """Return what tells this start of the machine from others; "" where it is not known."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _process(pid: int) -> str:
    """Return a process as its number and when it started, since numbers come back; "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # the name before the last bracket may hold anything; the start is the 20th behind it
    return f"{pid} {stat.rpartition(')')[2].split()[19]}"
