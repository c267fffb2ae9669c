"""`clover-rt run`: answer one prompt and stream the text."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, TextIO

from clover_rt.cli import events, examples
from clover_rt.cli.flags import check_examples, check_flags, check_modes, check_seed
from clover_rt.cli.interrupts import Interrupts
from clover_rt.cli.output import own_output
from clover_rt.cli.parser import DEFAULT_MODEL, fraction, named, not_negative, positive, token_ids
from clover_rt.cli.progress import Progress
from clover_rt.cli.prompt import Prompt, is_given, read_prompt
from clover_rt.cli.screen import Screen, print_line
from clover_rt.cli.summary import summary
from clover_rt.errors import CloverError

if TYPE_CHECKING:
    from clover_rt.api import Opened, Order

HELP = "answer one prompt"
DESCRIPTION = """Answer one prompt and stream the text to stdout. The last line, on stderr, says
which mode ran, where, and how fast."""
EXAMPLES = """  clover-rt run --examples
  clover-rt run "Sort these numbers: 41, 7, 23."
  clover-rt run "Count from 23 to 49 by 2." --show
  echo "Count from 3 to 9." | clover-rt run --mode ar
  clover-rt run "Hello" --model path/to/checkpoint --system "Be brief." --no-think
  clover-rt run "Hello" --temperature 0.7 --top-p 0.9 --seed 7
  clover-rt run --explain"""
MODES = ("diffusion", "ar", "self-spec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `run`."""
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="the prompt; absent or -: read from stdin")
    add("--prompt-file", metavar="FILE", help="read the prompt from a UTF-8 file")
    add(
        "--prompt-ids",
        type=token_ids,
        metavar="IDS",
        help="token ids as the prompt, such as 1,2,3; no chat template",
    )
    add(
        "--model",
        type=named,
        metavar="DIR|NAME",
        help=f"checkpoint folder, or a built-in model by name (default: {DEFAULT_MODEL})",
    )
    add("--system", metavar="TEXT", help="system prompt of the chat")
    add(
        "--raw",
        action="store_true",
        default=None,
        help="use the prompt as it is, without the chat template",
    )
    thinking = parser.add_mutually_exclusive_group()
    thinking.add_argument(
        "--think",
        dest="think",
        action="store_true",
        default=None,
        help="let the model reason before it answers (default: as the template says)",
    )
    thinking.add_argument(
        "--no-think", dest="think", action="store_false", default=None, help="answer at once"
    )

    decoding = parser.add_argument_group("decoding")
    add = decoding.add_argument
    add(
        "--mode",
        choices=MODES,
        help="diffusion: blocks by confidence; ar: one token a step; self-spec: a preview drafts, "
        "a causal pass judges (default: diffusion, or ar where a checkpoint has no preview)",
    )
    add(
        "--max-new-tokens",
        type=positive,
        metavar="N",
        help="at most N (default: 256, or what the context leaves); more than it leaves is an "
        "error",
    )
    add("--threshold", type=fraction, metavar="P", help="diffusion: fix rows above this confidence")
    add("--block-size", type=positive, metavar="B", help="diffusion: rows a block")
    add("--draft-width", type=positive, metavar="W", help="self-spec: rows a draft (default 16)")
    add(
        "--accept",
        choices=("exact", "typical"),
        help="self-spec: exact gives the text of greedy ar (default); typical is faster, lossy",
    )
    add(
        "--temperature",
        type=not_negative,
        metavar="T",
        help="0: greedy (default: as the checkpoint)",
    )
    add("--top-k", type=positive, metavar="K", help="sample among the K likeliest (at most 64)")
    add("--top-p", type=fraction, metavar="P", help="sample within this probability mass")
    add("--seed", type=int, metavar="N", help="seed of sampling (default 0)")
    add("--stop", action="append", metavar="TEXT", help="stop before TEXT; repeatable")
    add(
        "--no-controls",
        dest="controls",
        action="store_false",
        default=None,
        help="ignore the checkpoint's penalties and ramps",
    )

    where = parser.add_argument_group("where and how it runs")
    add = where.add_argument
    add("--backend", default="cpu", metavar="NAME", help="see `clover-rt backends` (default cpu)")
    add("--device", metavar="ID", help="device of the backend (default: its first)")
    add(
        "--precision",
        choices=("exact", "fast"),
        default="exact",
        help="exact: float32 throughout (default); fast: the backend's choice",
    )
    add("--context", type=positive, metavar="N", help="positions to reserve memory for")
    add(
        "--threads",
        type=positive,
        metavar="N",
        help="threads of the cpu backend, which runs host steps too (default: one a core)",
    )
    add("--strict", action="store_true", help="refuse host steps inside the layers")

    output = parser.add_argument_group("output")
    add = output.add_argument
    add(
        "--explain",
        action="store_true",
        help="print the plan to stderr, with --json as a line; without a prompt, only it",
    )
    add(
        "--show",
        action="store_true",
        help="diffusion, self-spec: draw each block as its masks are filled, or each draft and "
        "what of it is accepted, at least 0.2 s a picture, where stdout and stderr are a terminal; "
        "the text is the same; by confidence green from 0.95, yellow from 0.7, else red; new: bold",
    )
    add("--profile", action="store_true", help="print time, bytes and launches per op to stderr")
    add("--json", action="store_true", help="print JSON lines instead of the text (docs/json.md)")
    add(
        "--debug-blocks",
        metavar="FILE",
        help="diffusion: write one JSON line a pass to FILE: accepted, confidences, masks left, ms",
    )
    add(
        "--examples",
        action="store_true",
        help="list what to ask a built-in model: for each kind of task that it knows a command to "
        "paste; runs nothing",
    )
    add("-q", "--quiet", action="store_true", help="no progress and no summary line")


def main(args: argparse.Namespace) -> int:
    """Generate and print; return 0, or 130 or 143 after a signal. Raises CloverError."""
    if args.examples:
        check_examples(args)
        return examples.show(args)
    with own_output() as out:
        try:
            return run(args, out)
        except CloverError as error:
            if args.json:
                print_line(events.failure(error), out)
            raise


def run(args: argparse.Namespace, out: TextIO) -> int:
    """Load, answer, and print the summary; return the exit code."""
    check_flags(args)
    only_explain = args.explain and not is_given(args)
    prompt = "" if only_explain else read_prompt(args)
    progress = Progress(quiet=args.quiet)
    # the heavy part: numpy, tokenizers, the backend
    from clover_rt.api import open_model

    opened = open_model(
        args.model,
        backend=args.backend,
        device=args.device,
        precision=args.precision,
        context=args.context,
        threads=args.threads,
    )
    # what cannot be answered is refused before anything is allocated
    order = None if only_explain else ask(opened, prompt, args)
    try:
        model = opened.bind(
            strict=args.strict,
            profile=args.profile,
            on_progress=progress.load,
            on_note=None if args.quiet else progress.note,
        )
    finally:
        progress.stop()
    with model:
        for warning in opened.source.checkpoint.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if args.explain and not args.json:
            print(model.explain(), file=sys.stderr)
        if order is None:
            if args.json:
                print_line(events.plan(model.report()), out)
            return 0
        response = model.run(order)
        screen = Screen(args, out, progress, model.source.tokenizer)
        with (
            response,
            Interrupts(response.cancel, lambda: progress.is_compiling) as interrupts,
        ):
            screen.start(response, model.report() if args.explain else None)
            end = screen.show(response)
        if args.profile:
            print(model.profile(), file=sys.stderr)
        tally = model.tally()
    if not args.quiet:
        if args.model is None:
            print(f"built-in {DEFAULT_MODEL}: a demo, not an assistant", file=sys.stderr)
        print(summary(end.stats, end.finish_reason, tally), file=sys.stderr)
    return interrupts.exit_code


def ask(opened: Opened, prompt: Prompt, args: argparse.Namespace) -> Order:
    """Return the request for a prompt; flags are checked once more, now with the checkpoint."""
    mode = args.mode or opened.source.modes[0]
    check_modes(args, (mode,), f"mode {mode}, this checkpoint's default")
    check_seed(args, opened.source.generation.greedy)
    from clover_rt.api import Options

    # what was not given is left out, so that it has the default of `Model.generate`
    flags = {n: getattr(args, n, None) for n in Options.__annotations__ if n != "mode"}
    given = {name: value for name, value in flags.items() if value is not None}
    return opened.order(prompt, mode=mode, **given)
