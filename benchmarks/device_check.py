#!/usr/bin/env python3
"""Judge and time clover-rt on a card: started by device_check.sh, which tells how.

Parts run one after the other, each in a process of its own, the most telling first: the device is
opened, so that what is done once on a new card does not count as theirs, then doctor, the card's
bandwidth, conformance of the three hot ops, the built-in model from prompt to text, then
passes of the release's geometry at q4 beside the bandwidth, kernels one by one, and in the time
that is left conformance of everything else. A part may use what is left but for the shares of those
behind it, so that one that hangs does not keep them from their turn.

The JSON is written anew after each part and whenever a part has more to tell, so that it is whole
at any time. Each part says `done`, `failed` with the reason, `not finished` where it was ended
before it could say so, or `not reached`; a part that is ended keeps what it had found. Times say of
themselves whether the hot ops were judged right: null where they were not all judged.

Where `open` is not finished, a part behind it does anew what is done once on a card, and may not
end in its time either. Where it fails since there is no such device, doctor still looks at the
machine, and nothing else is run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import device_parts

# kept back for the end of the last part and the last write; device_check.sh ends this later only
MARGIN_S = 12.0
# a part that is told to end has so long to end what it started
GRACE_S = 3.0
# less is not worth a start
LEAST_S = 3.0
POLL_S = 0.2
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOLD = 2000
NOT_REACHED, NOT_FINISHED, FAILED, DONE = "not reached", "not finished", "failed", "done"


@dataclass(frozen=True)
class Part:
    """A part of the check, and its share of the time: seconds where all of it is 8 minutes."""

    name: str
    share_s: float


JUDGED = tuple(
    f"conformance {op} {precision}"
    for precision in device_parts.PRECISIONS
    for op in device_parts.HOT
)
# these need the part `checkpoint` too, unless a model is given
TIMED = ("passes", "kernels")
PARTS = (
    # on a new card torch is read from disk, and HIP tries graphs in a child
    Part("open", 150),
    Part("doctor", 30),
    Part("bandwidth", 10),
    *(Part(name, 18) for name in JUDGED),
    Part("model", 30),
    Part("checkpoint", 40),
    Part("passes", 60),
    Part("kernels", 40),
    Part("conformance rest", 0),
)


class Stopped(Exception):
    """The check was told to end."""


class Check:
    """The report, the file that it lies in, and the clock."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self.args = args
        self.work = work
        self.start = time.monotonic()
        self.end = self.start + 60 * args.minutes - MARGIN_S
        self.parts = [p for p in PARTS if not args.only or p.name in args.only]
        self.report: dict[str, Any] = {
            "benchmark": "device_check",
            "schema": 1,
            # a name and not a path: reports travel
            "settings": settings(args) | {"model": Path(args.model).name if args.model else None},
            "ended": "running",
            "seconds": 0.0,
            "parts": {part.name: {"state": NOT_REACHED} for part in PARTS},
        }

    def write(self, ended: str = "running") -> None:
        """Write the report in one step: a reader never sees half of it."""
        self.report["ended"] = ended
        self.report["seconds"] = round(time.monotonic() - self.start, 1)
        temporary = self.args.out.with_name(self.args.out.name + ".part")
        temporary.write_text(json.dumps(self.report, indent=1) + "\n")
        os.replace(temporary, self.args.out)

    def missing(self, part: Part) -> str:
        """Return what a part needs and does not have, "" for nothing."""
        states = {name: entry["state"] for name, entry in self.report["parts"].items()}
        if states["open"] == FAILED and part.name != "doctor":
            return "the device was not opened"
        is_made = self.args.model or states["checkpoint"] in (DONE, NOT_REACHED)
        return "" if is_made or part.name not in TIMED else "the checkpoint was not made"

    def limit_s(self, part: Part) -> float:
        """Return the seconds that a part may take: what is left but for the shares behind it."""
        whole = sum(p.share_s for p in PARTS)
        behind = sum(p.share_s for p in self.parts[self.parts.index(part) + 1 :])
        return self.end - time.monotonic() - behind * (self.end - self.start) / whole

    def run(self, part: Part) -> None:
        """Run a part in a process of its own and note what became of it."""
        limit = self.limit_s(part)
        entry = self.report["parts"][part.name]
        entry |= {"state": NOT_FINISHED, "reason": "it was running when the check was stopped"}
        found = self.work / "found.json"
        found.unlink(missing_ok=True)
        self.write()
        start = time.monotonic()
        errors = self.work / "errors.txt"
        try:
            with errors.open("wb") as log, child(self.command(part, limit, found), log) as process:
                state, reason = self.wait(process, entry, found, start + limit)
        finally:
            entry |= read(found)
            entry["seconds"] = round(time.monotonic() - start, 1)
            if "wrong" in entry:
                entry |= {"state": FAILED, "reason": entry["wrong"]}
        if part.name in TIMED:
            entry["hot_ops_are_right"] = self.hot_ops_are_right()
        if "wrong" not in entry:
            said = errors.read_text(errors="replace")[-TOLD:].strip()
            entry |= {"state": state, "reason": f"{reason}: {said}" if said else reason}
        if entry["state"] == DONE:
            del entry["reason"]
        self.write()
        reason = entry.get("reason", "")
        print(f"{part.name}: {entry['state']}" + (f": {reason}" if reason else ""), flush=True)

    def hot_ops_are_right(self) -> bool | None:
        """Return whether all hot ops were judged right; None where some were not judged."""
        parts = [self.report["parts"][name] for name in JUDGED]
        if any("wrong" in part for part in parts):
            return False
        return True if all(part["state"] == DONE for part in parts) else None

    def command(self, part: Part, limit: float, found: Path) -> list[str]:
        given = {**settings(self.args), "work": str(self.work), "limit_s": limit}
        return [sys.executable, device_parts.__file__, part.name, json.dumps(given), str(found)]

    def wait(
        self, process: subprocess.Popen[bytes], entry: dict[str, Any], found: Path, end: float
    ) -> tuple[str, str]:
        """Return the state of a part, and why it is not done; write what it tells meanwhile."""
        seen = 0
        while process.poll() is None:
            if time.monotonic() > end:
                return NOT_FINISHED, "its time was up"
            time.sleep(POLL_S)
            written = found.stat().st_mtime_ns if found.exists() else 0
            if written != seen:
                seen = written
                entry |= read(found)
                self.write()
        code = process.returncode
        return (FAILED, f"it ended with code {code}") if code else (DONE, "")


@contextmanager
def child(command: list[str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process and, at the end, leave none of those that it started.

    It is told to end first: only it knows of processes in sessions of their own.
    """
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read(found: Path) -> dict[str, Any]:
    """Return what a part has told so far."""
    try:
        told: dict[str, Any] = json.loads(found.read_text())
    except FileNotFoundError:
        return {}
    return told


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the parts are given."""
    names = ("backend", "device", "layers", "vocab", "depths", "repeats", "model", "only")
    return {name: getattr(args, name) for name in names}


def install(wheel: Path, work: Path) -> None:
    """Unpack a wheel where the parts find it first."""
    site = work / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{site}{os.pathsep}{before}" if before else str(site)


def minutes(text: str) -> float:
    # as device_check.sh reads it: that must not take other numbers, and end nothing that hangs
    if not re.fullmatch(r"[0-9]*[.]?[0-9]+", text) or float(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, such as 8 or 2.5")
    return float(text)


def main() -> int:
    """Return 0 if every part is done, 1 if one is not, 2 for a wrong argument, 130 if stopped."""
    parser = argparse.ArgumentParser(
        prog="device_check.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # device_check.sh reads --minutes too, and knows no short forms
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--backend", default="cuda")
    add("--device", help="of the backend (default: its first)")
    add("--wheel", type=Path, help="of clover-rt (default: what this python has)")
    add("--minutes", type=minutes, default=8.0, help="for all of it")
    add("--layers", type=int, default=4, help="of the geometry; 40 with --vocab 248320: 20 GB")
    add("--vocab", type=int, default=32768)
    add("--model", help="a checkpoint to time instead of a new one")
    add("--depths", type=int, nargs="+", default=[0, 4096], help="tokens before a pass")
    add("--repeats", type=int, default=9, help="timed passes of each kind")
    add("--only", nargs="+", choices=[p.name for p in PARTS], metavar="PART", help="these parts")
    add("--work", type=Path, help="where the checkpoint is made and removed again")
    add("--out", type=Path, default=Path("device-check.json"))
    args = parser.parse_args()
    for name, folder in (("--out", args.out.absolute().parent), ("--work", args.work)):
        if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
            parser.error(f"{name}: {folder} is no folder that can be written to")
    if args.out.is_dir():
        parser.error(f"--out: {args.out} is a folder; name a file in it")

    def stop(number: int, frame: Any) -> None:
        # once is enough: another one must not stop the clearing up
        for own in STOPS:
            signal.signal(own, signal.SIG_IGN)
        raise Stopped

    for number in STOPS:
        signal.signal(number, stop)
    work = Path(tempfile.mkdtemp(prefix="clover-check-", dir=args.work))
    check = Check(args, work)
    try:
        check.write()
        if args.wheel:
            install(args.wheel, work)
        for part in check.parts:
            missing = check.missing(part)
            if missing:
                check.report["parts"][part.name]["reason"] = missing
            elif check.limit_s(part) >= LEAST_S:
                check.run(part)
        was_opened = check.report["parts"]["open"]["state"] != FAILED
        check.write("complete" if was_opened else "the device was not opened")
    except Stopped:
        check.write("stopped")
        print(f"stopped: what was found is in {args.out}")
        return 130
    except subprocess.CalledProcessError as error:
        check.write(f"the wheel was not installed: {error}")
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    states = [
        p["state"] for n, p in check.report["parts"].items() if not args.only or n in args.only
    ]
    print(f"{states.count(DONE)} of {len(states)} parts done: {args.out}")
    return 0 if set(states) == {DONE} else 1


if __name__ == "__main__":
    sys.exit(main())
