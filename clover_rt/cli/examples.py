"""`clover-rt run --examples`: what to ask a built-in model, as commands to paste."""

from __future__ import annotations

import argparse
import shlex

SCHEMA = 1


def show(args: argparse.Namespace) -> int:
    """Print the examples; return 0. Raises BadInput (CRT-1068) for what has none."""
    from clover_rt.api import examples

    found = examples() if args.model is None else examples(args.model)
    if args.json:
        import json

        print(json.dumps({"schema": SCHEMA, "examples": found}, indent=1))
        return 0
    model = [] if args.model is None else ["--model", args.model]
    for example in found:
        print(f"{example['kind']}\n  {shlex.join(['clover-rt', 'run', example['prompt'], *model])}")
    return 0
