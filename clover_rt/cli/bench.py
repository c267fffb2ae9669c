"""`clover-rt bench`: how fast passes are, and two such reports side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from clover_rt.cli import output_file
from clover_rt.cli.flags import no_effect
from clover_rt.cli.output import own_output
from clover_rt.cli.parser import named, not_negative_int, positive
from clover_rt.cli.progress import Progress

HELP = "time the passes of a checkpoint"
DESCRIPTION = """Time a preview of 32 distinct tokens, one of masks, a decode of one token and
prefill, at several depths of the KV cache, beside the memory bandwidth measured in the same run. A
preview must read the experts that its rows choose, so their number a layer is shown: compare
previews of like numbers only. --compare A B puts two reports side by side if they were measured
alike."""
EXAMPLES = """  clover-rt bench
  clover-rt bench path/to/checkpoint --precision fast --depths 0 8192 --out q4.json
  clover-rt bench --compare path/to/q8.json path/to/q4.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `bench`."""
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        type=named,
        metavar="MODEL",
        help="checkpoint folder (default: the built-in model)",
    )
    add("--backend", metavar="NAME", help="see `clover-rt backends` (default cpu)")
    add("--device", metavar="ID", help="device of the backend (default: its first)")
    add(
        "--precision",
        choices=("exact", "fast"),
        help="exact: float32 throughout (default); fast: the backend's choice",
    )
    add(
        "--threads",
        type=positive,
        metavar="N",
        help="threads of the cpu backend, which runs host steps too (default: one a core)",
    )
    add(
        "--depths",
        type=not_negative_int,
        nargs="+",
        metavar="N",
        help="tokens in the KV cache (default: 0 1024 4096); less than 64 count as 64",
    )
    add("--chunk", type=positive, metavar="N", help="rows of a prefill pass (default 512)")
    add("--repeats", type=positive, metavar="N", help="timed passes of each kind (default 5)")
    add("--seed", type=int, metavar="N", help="seed of the tokens (default 0)")
    add("--compare", type=Path, nargs=2, metavar=("A", "B"), help="compare two reports of --out")
    add("--json", action="store_true", help="print one JSON object")
    add("--out", type=Path, metavar="FILE", help="write the JSON to FILE as well")


def main(args: argparse.Namespace) -> int:
    """Print the figures; return 0. Raises CloverError."""
    from clover_rt import bench

    names = ("model", "backend", "device", "precision", "threads", "depths", "chunk", "repeats")
    given = {n: getattr(args, n) for n in (*names, "seed") if getattr(args, n) is not None}
    if args.compare:
        for name in (*given, *(["out"] if args.out is not None else [])):
            raise no_effect(name, "--compare, which measures nothing", "leave one of them out")
        found = bench.compare(*(bench.read(path) for path in args.compare))
        text = bench.render_comparison(found)
    else:
        if args.out is not None:
            output_file.check("--out", args.out)
        progress = Progress()
        try:
            with own_output():
                found = bench.report(bench.Setting(**given), progress.load, progress.note)
        finally:
            progress.stop()
        text = bench.render(found)
        if args.out is not None:
            output_file.write("--out", args.out, json.dumps(found, indent=1))
    print(json.dumps(found, indent=1) if args.json else text)
    return 0
