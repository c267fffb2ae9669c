"""`clover-rt quantize`: a checkpoint in 4 or 8 bits a weight."""

from __future__ import annotations

import argparse
import sys

from clover_rt.cli.parser import named, positive

HELP = "write a checkpoint in 4 or 8 bits a weight"
DESCRIPTION = """Write a checkpoint anew with its matrices in 4 or 8 bits a weight, tensor by
tensor, in little memory. The result is a folder of safetensors files that every command takes in
the place of the source. Embeddings and head get 8 bits at least; router, norms, gates,
convolutions and the tensors of the preview stay as they are."""
EXAMPLES = """  clover-rt quantize path/to/checkpoint path/to/result --format q4 --dry-run
  clover-rt quantize path/to/checkpoint path/to/result --format q4 --verify
  clover-rt quantize path/to/checkpoint path/to/result --format q4 --keep '*.self_attn.*=q8'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `quantize`."""
    add = parser.add_argument
    add("source", type=named, metavar="PATH", help="checkpoint folder, or a built-in model by name")
    add("target", type=named, metavar="DIR", help="a folder that does not exist yet")
    add("--format", choices=("q4", "q8"), required=True, help="of the matrices: 4 or 8 bits")
    add(
        "--group",
        type=positive,
        default=32,
        metavar="N",
        help="weights that share a scale: 32 (default), 64 or 128; q8 has groups of 32",
    )
    add(
        "--keep",
        action="append",
        default=[],
        metavar="GLOB=FORMAT",
        help="tensors to store in q8, or with bf16 as they are; the first rule that matches counts",
    )
    add("--dry-run", action="store_true", help="write nothing, print the sizes")
    add("--resume", action="store_true", help="go on where an earlier run was stopped")
    add("--verify", action="store_true", help="read the result back and print its errors")
    add("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Write the result and print its sizes; return 0. Raises CloverError."""
    from clover_rt.api.quantising import quantise, render
    from clover_rt.cli.flags import no_effect
    from clover_rt.cli.progress import Progress

    for name in ("resume", "verify") if args.dry_run else ():
        if getattr(args, name):
            raise no_effect(name, "--dry-run, which writes nothing", "leave one of them out")
    progress = Progress()
    try:
        found = quantise(
            args.source,
            args.target,
            args.format,
            group=args.group,
            keep=args.keep,
            dry_run=args.dry_run,
            resume=args.resume,
            verify=args.verify,
            on_progress=progress.stored,
        )
    except KeyboardInterrupt:
        progress.stop()
        print("what is finished stays; --resume goes on with it", file=sys.stderr)
        raise
    finally:
        progress.stop()
    if args.json:
        import json

        print(json.dumps(found, indent=1))
    else:
        print(render(found))
    return 0
