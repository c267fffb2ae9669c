#!/usr/bin/env python3
"""Measure opening checkpoints: seconds and peak memory of a fresh process, against limits.

    open.py                     the release's headers, fused and per expert (sparse files)
    open.py --real              also 4 layers with data: writes 7 GB first
    open.py --folder DIR        one checkpoint that exists, under the limits of the release

Prints one JSON object; the exit status is 1 if a limit is exceeded. Opening means reading
configuration and headers, mapping the files and matching every tensor: `Checkpoint.open` and
`load_weights`. Peak memory is VmHWM of the whole process, the interpreter and numpy included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from make_release import make_release

from clover_rt.bench.machine import environment, peak_bytes

MB = 1e6


@dataclass(frozen=True)
class Case:
    """A checkpoint to open and its limits: seconds of opening, peak megabytes (1e6 bytes)."""

    name: str
    limit_s: float
    limit_mb: float
    settings: dict[str, Any] = field(default_factory=dict)


WHOLE = {"vocab": 248320, "sparse": True}
SPLIT = {**WHOLE, "per_expert": True, "shards": 26}
CASES = (
    Case("release", 3.0, 500, {**WHOLE, "layers": 40}),
    Case("release per expert, 30720 expert tensors", 6.0, 700, {**SPLIT, "layers": 40}),
    Case("three times its layers, 92160 expert tensors", 6.0, 700, {**SPLIT, "layers": 120}),
)
REAL = Case("4 layers with data", 3.0, 500, {"layers": 4, "vocab": 32768})


def child(folder: str) -> dict[str, Any]:
    """Open a checkpoint in this process; return what it cost."""
    start = time.perf_counter()
    # inside, so that the import is timed apart
    from clover_rt.weights import Checkpoint, load_weights

    imported = time.perf_counter()
    checkpoint = Checkpoint.open(folder)
    opened = time.perf_counter()
    weights = load_weights(checkpoint)
    loaded = time.perf_counter()
    return {
        "import_s": round(imported - start, 3),
        "open_s": round(opened - imported, 3),
        "load_weights_s": round(loaded - opened, 3),
        "seconds": round(loaded - imported, 3),
        "vmhwm_mb": round(peak_bytes() / MB, 1),
        "tensors": len(checkpoint.tensors),
        "weights": len(weights),
        "gb": round(checkpoint.nbytes / 1e9, 3),
    }


def measure(case: Case, folder: Path, runs: int) -> dict[str, Any]:
    """Open a folder in `runs` fresh processes; judge the worst of them."""
    command = [sys.executable, __file__, "--child", str(folder)]
    results = []
    for _ in range(runs):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results.append(json.loads(done.stdout))
    seconds = max(r["seconds"] for r in results)
    peak = max(r["vmhwm_mb"] for r in results)
    return {
        **asdict(case),
        "seconds": seconds,
        "vmhwm_mb": peak,
        "ok": seconds < case.limit_s and peak < case.limit_mb,
        "runs": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="measure this checkpoint only")
    parser.add_argument("--real", action="store_true", help="also make and open 7 GB of data")
    parser.add_argument("--work", type=Path, help="where checkpoints are made and removed again")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child)))
        return
    results = []
    if args.folder:
        case = Case(args.folder.name, CASES[0].limit_s, CASES[0].limit_mb)
        results.append(measure(case, args.folder, args.runs))
    else:
        for case in (*CASES, *((REAL,) if args.real else ())):
            folder = Path(tempfile.mkdtemp(prefix="clover-open-", dir=args.work))
            try:
                make_release(folder, **case.settings)
                results.append(measure(case, folder, args.runs))
            finally:
                shutil.rmtree(folder)
    report = {
        "benchmark": "open",
        **environment(),
        "runs": args.runs,
        "results": results,
        "ok": all(r["ok"] for r in results),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
