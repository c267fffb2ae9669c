"""`clover-rt fit`: does a checkpoint fit, here and on cards of 16, 24 and 32 GB."""

from __future__ import annotations

import argparse

from clover_rt.cli.parser import named, positive

HELP = "say whether a checkpoint fits in memory"
DESCRIPTION = """Count the memory that a checkpoint takes on a device - weights, key and value
cache, recurrent state, activations - from its headers alone, and the largest context that fits
here and in 16, 24 and 32 GB."""
EXAMPLES = """  clover-rt fit
  clover-rt fit path/to/checkpoint --context 32768"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `fit`."""
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        type=named,
        metavar="MODEL",
        help="checkpoint folder (default: the built-in model)",
    )
    add("--context", type=positive, metavar="N", help="positions to count (default: as `run`)")
    add("--backend", default="cpu", metavar="NAME", help="see `clover-rt backends` (default cpu)")
    add("--device", metavar="ID", help="device of the backend (default: its first)")
    add(
        "--slots", type=positive, default=2, metavar="N", help="sequences and snapshots (default 2)"
    )
    add(
        "--precision",
        choices=("exact", "fast"),
        default="exact",
        help="exact: float32 throughout (default); fast: the backend's choice",
    )
    add("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the sizes; return 0. Raises CloverError."""
    from clover_rt.api.fitting import fits
    from clover_rt.cli.output import own_output
    from clover_rt.fit import render

    with own_output():
        report = fits(
            args.model,
            backend=args.backend,
            device=args.device,
            precision=args.precision,
            context=args.context,
            slots=args.slots,
        )
    if args.json:
        import json

        print(json.dumps(report, indent=1))
    else:
        print(render(report))
    return 0
