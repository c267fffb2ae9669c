#!/usr/bin/env python3
"""Time the passes of several checkpoints in one run, such as one model in several formats.

    pass.py                                  the built-in model
    pass.py DIR DIR-q8 DIR-q4 --depths 0 8192 --precision fast --rounds 3

Prints one JSON object: what `clover-rt bench --json` gives for each checkpoint and round. Rounds
go through all checkpoints in turn, so that a machine that slows down slows all of them; compare
within one run only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def measure(model: str | None, args: argparse.Namespace) -> dict[str, Any]:
    """Return a report from a process of its own: a peak of memory is the process's."""
    command = [sys.executable, "-m", "clover_rt", "bench", *([model] if model else []), "--json"]
    for name in ("backend", "device", "precision", "threads", "chunk", "repeats", "seed"):
        if (value := getattr(args, name)) is not None:
            command += [f"--{name}", str(value)]
    done = subprocess.run(
        [*command, "--depths", *map(str, args.depths)], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="checkpoint folders (default: the built-in one)")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="exact", choices=("exact", "fast"))
    parser.add_argument("--threads", type=int, help="of the cpu backend (default: one a core)")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 1024, 4096])
    parser.add_argument("--chunk", type=int, default=512, help="rows of a prefill pass")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1, help="times through all checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    args = parser.parse_args()
    reports = [measure(m, args) for _ in range(args.rounds) for m in args.models or [None]]
    text = json.dumps({"benchmark": "passes", "schema": 1, "reports": reports}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
