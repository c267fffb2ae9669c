"""`clover-rt run`: answer one prompt and stream the text."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from clover_rt.cli.flags import check_flags, positive
from clover_rt.errors import BadInput

if TYPE_CHECKING:
    from clover_rt.api import EndEvent, Model

HELP = "answer one prompt"
DESCRIPTION = """Answer one prompt and stream the text to stdout. The last line, on stderr, says
which mode ran, where, and how fast."""
MODES = ("diffusion", "ar", "self-spec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `run`."""
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="the prompt; absent or -: read from stdin")
    add("--model", metavar="DIR", help="checkpoint folder (default: the built-in model)")
    add("--system", metavar="TEXT", help="system prompt of the chat")
    add("--raw", action="store_true", help="use the prompt as it is, without the chat template")
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
    add("--max-new-tokens", type=positive, default=256, metavar="N", help="at most N (default 256)")
    add("--threshold", type=float, metavar="P", help="diffusion: fix rows above this confidence")
    add("--block-size", type=positive, metavar="B", help="diffusion: rows a block")
    add("--draft-width", type=positive, metavar="W", help="self-spec: rows a draft (default 16)")
    add(
        "--accept",
        choices=("exact", "typical"),
        help="self-spec: exact gives the text of greedy ar (default); typical is faster, lossy",
    )
    add("--temperature", type=float, metavar="T", help="0: greedy (default: as the checkpoint)")
    add("--top-k", type=positive, metavar="K", help="sample among the K likeliest (at most 64)")
    add("--top-p", type=float, metavar="P", help="sample within this probability mass")
    add("--seed", type=int, metavar="N", help="seed of sampling (default 0)")
    add("--stop", action="append", default=[], metavar="TEXT", help="stop before TEXT; repeatable")
    add(
        "--no-controls",
        dest="controls",
        action="store_false",
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
    add("--strict", action="store_true", help="refuse host steps inside the layers")

    output = parser.add_argument_group("output")
    add = output.add_argument
    add(
        "--explain", action="store_true", help="print the plan to stderr; without a prompt, only it"
    )
    add("--profile", action="store_true", help="print time, bytes and launches per op to stderr")
    add("--json", action="store_true", help="print one JSON object at the end, not the text")
    add("-q", "--quiet", action="store_true", help="no summary line")


def main(args: argparse.Namespace) -> int:
    """Generate and print; return 0. Raises CloverError."""
    check_flags(args)
    only_explain = args.explain and args.prompt is None
    prompt = "" if only_explain else read_prompt(args.prompt)
    # the heavy part: numpy, tokenizers, the backend
    from clover_rt.api import load

    with load(
        args.model,
        backend=args.backend,
        device=args.device,
        precision=args.precision,
        context=args.context,
        strict=args.strict,
        profile=args.profile,
    ) as model:
        if args.explain:
            print(model.explain(), file=sys.stderr)
        if only_explain:
            return 0
        end = generate(model, prompt, args)
        if args.profile:
            print(model.profile(), file=sys.stderr)
    if args.json:
        print_json(end)
    if not args.quiet:
        print(summary(end.stats), file=sys.stderr)
    return 0


def read_prompt(given: str | None) -> str:
    """Return the prompt from the command line or from a piped stdin.

    Raises BadInput: CRT-1012 there is none, CRT-1013 stdin is not UTF-8.
    """
    if given is not None and given != "-":
        prompt, source = given, "the argument is empty"
    elif given is None and sys.stdin.isatty():
        prompt, source = "", "no argument, and stdin is a terminal"
    else:
        try:
            prompt, source = sys.stdin.read(), "stdin is empty"
        except UnicodeDecodeError as error:
            raise BadInput(
                what="cannot read the prompt from stdin",
                evidence=str(error),
                fix="send UTF-8 text",
                code="CRT-1013",
            ) from error
    if not prompt:
        raise BadInput(
            what="there is no prompt",
            evidence=source,
            fix='give one, as in: clover-rt run "Hello"   or   echo Hello | clover-rt run',
            code="CRT-1012",
        )
    return prompt


def generate(model: Model, prompt: str, args: argparse.Namespace) -> EndEvent:
    """Stream the answer to stdout (unless --json) and return the end event."""
    from clover_rt.api import EndEvent, TextEvent

    events = model.generate(
        prompt,
        mode=args.mode,
        raw=args.raw,
        system=args.system,
        think=args.think,
        max_new_tokens=args.max_new_tokens,
        threshold=args.threshold,
        block_size=args.block_size,
        accept=args.accept,
        draft_width=args.draft_width,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed or 0,
        stop=tuple(args.stop),
        controls=args.controls,
    )
    end: EndEvent | None = None
    last = ""
    # closing: an interrupt here ends the run in the engine too
    with closing(events):
        for event in events:
            if isinstance(event, TextEvent) and event.text and not args.json:
                sys.stdout.write(event.text)
                sys.stdout.flush()
                last = event.text
            elif isinstance(event, EndEvent):
                end = event
    if last and not last.endswith("\n"):
        sys.stdout.write("\n")
    assert end is not None, "generate ended without an end event"
    return end


def print_json(end: EndEvent) -> None:
    """Print the whole result as one JSON object."""
    import json

    result = {
        "schema": 1,
        "text": end.text,
        "tokens": list(end.tokens),
        "finish_reason": end.finish_reason,
        "stats": dict(end.stats),
    }
    print(json.dumps(result, ensure_ascii=False))


def summary(stats: Any) -> str:
    """Return the last line: what ran where, and how fast; parts that a mode lacks are left out."""
    parts = [str(stats[key]) for key in ("mode", "device", "precision") if stats.get(key)]
    tokens, passes, blocks = (stats.get(key, 0) for key in ("tokens", "passes", "blocks"))
    parts.append(f"{tokens:.0f} tokens")
    if passes:
        parts.append(f"{stats['tokens_per_pass']:.2f} tokens a pass")
    if blocks:
        parts.append(f"{passes / blocks:.2f} passes a block")
    if passes:
        parts.append(f"{stats['ms_per_pass']:.2f} ms a pass")
    if stats.get("decode_ms"):
        parts.append(f"{1000 * tokens / stats['decode_ms']:.1f} tokens/s")
    return " · ".join(parts)
