"""May passes be recorded and replayed on a card? A child process tries it once, and may crash.

HIP graphs have crashed on some architectures. So recording is off until `trial` has passed in a
process of its own on this architecture, driver, torch and version of clover-rt. The outcome is
kept; it is written before the trial starts too, so that a machine that hangs does not try again.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from clover_rt.backend import DeviceInfo
from clover_rt.cache import cache_folder, write

Trial = Callable[[DeviceInfo], str]
TRIAL_S = 300.0
PASSED = "passed"
STARTED = "an earlier trial did not end"


def is_safe(info: DeviceInfo, trial: Trial | None = None, folder: Path | None = None) -> bool:
    """Return whether the trial has passed on such a card; run it where it was not tried yet.

    trial  device -> "" where it passed, else what went wrong
    """
    path = _path(info, folder)
    outcome = _outcome(path)
    if not outcome:
        _keep(path, info, STARTED)
        # where nothing can be kept, a machine that hangs would try again at each start
        if _outcome(path) != STARTED:
            return False
        outcome = (child if trial is None else trial)(info) or PASSED
        _keep(path, info, outcome)
    return outcome == PASSED


def told(info: DeviceInfo, folder: Path | None = None) -> str:
    """Return what is known of recording on such a card, for people; "" where it was not tried."""
    outcome = _outcome(_path(info, folder))
    if outcome in ("", PASSED):
        return "passes are recorded as graphs" if outcome else ""
    return f"passes are not recorded: {outcome}"


def child(info: DeviceInfo) -> str:
    """Run the trial in a process of its own; return "" or what went wrong."""
    command = [sys.executable, "-m", "clover_rt_rocm.hip.trial", info.id]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S)
    except subprocess.TimeoutExpired:
        return f"the trial did not end in {TRIAL_S:.0f} s"
    except OSError as error:
        return f"the trial cannot be started: {error}"
    if ran.returncode == 0:
        return ""
    last = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
    how = f"signal {-ran.returncode}" if ran.returncode < 0 else f"exit code {ran.returncode}"
    return f"the trial ended by {how}: {last}"


def _path(info: DeviceInfo, folder: Path | None) -> Path:
    about = {k: v for k, v in info.notes.items() if k != "chosen"}
    key = json.dumps([about, metadata.version("clover-rt")], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()
    return (cache_folder("hip-graphs") if folder is None else folder) / f"{name}.json"


def _keep(path: Path, info: DeviceInfo, outcome: str) -> None:
    kept = {"outcome": outcome, "name": info.name, **info.notes}
    write(path, json.dumps(kept, indent=1).encode())


def _outcome(path: Path) -> str:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ""
    return str(kept.get("outcome", "")) if isinstance(kept, dict) else ""
