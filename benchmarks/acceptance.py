#!/usr/bin/env python3
"""How often a model answers right, and how many tokens a pass it writes, by mode and kind.

    acceptance.py                                  the built-in model on benchmarks/held_out.json
    acceptance.py --model DIR --limit 100 --wrong  another checkpoint, fewer prompts, wrong answers

Prints one JSON object with every setting. An answer is right if it is the wanted text and ends by
itself. Tokens are emitted tokens, the end token among them. A pass is a denoising pass; commits
are counted beside them, and `tokens_a_pass_with_commits` divides by both. `passes_a_block` is a
histogram over blocks; `several_passes` the share of answers with a block that took more than one.
`experts_a_layer` are the distinct experts of a layer in the passes that decide tokens, on average.
`all` leaves out the kind `foreign`: prompts that the model was not made for and must refuse.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import clover_rt
from clover_rt import builtin
from clover_rt.bench.machine import environment
from clover_rt.plan import Profile

HELD_OUT = Path(__file__).with_name("held_out.json")
CONTEXT = 1024


class Tally:
    """Sums over the answers of one mode, by kind or over all."""

    def __init__(self) -> None:
        self.count = self.right = self.several = self.layers = self.experts = 0
        self.tokens = self.passes = self.commits = self.rounds = 0
        self.histogram: Counter[int] = Counter()
        self.endings: Counter[str] = Counter()

    def add(self, is_right: bool, end: clover_rt.EndEvent, blocks: list[int]) -> None:
        self.count += 1
        self.right += is_right
        self.several += any(n > 1 for n in blocks)
        self.histogram.update(blocks)
        self.endings[end.finish_reason] += 1
        self.tokens += len(end.tokens)
        for name in ("passes", "commits", "rounds"):
            setattr(self, name, getattr(self, name) + int(end.stats[name]))

    def add_experts(self, distinct: list[int]) -> None:
        """Count the distinct experts, by layer, of one pass."""
        self.layers += len(distinct)
        self.experts += sum(distinct)

    def report(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "prompts": self.count,
            "exact": self.right / self.count,
            "tokens": self.tokens / self.count,
            "endings": dict(self.endings),
        }
        if self.histogram:
            out |= {
                "tokens_a_pass": self.tokens / self.passes,
                "tokens_a_pass_with_commits": self.tokens / (self.passes + self.commits),
                "several_passes": self.several / self.count,
                "passes_a_block": dict(sorted(self.histogram.items())),
            }
        if self.rounds:
            out["tokens_a_round"] = self.tokens / self.rounds
        if self.layers:
            out["experts_a_layer"] = self.experts / self.layers
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in out.items()}


def answer(
    model: clover_rt.Model, prompt: str, options: dict[str, Any], tallies: list[Tally]
) -> tuple[clover_rt.EndEvent, list[int]]:
    """Return the end of one generation and the passes of each block."""
    blocks = []
    deciding = (clover_rt.PassEvent, clover_rt.RoundEvent)
    if options["mode"] == "ar":
        deciding = (clover_rt.TokensEvent,)
    profile = model.plan.profile = Profile()
    for event in model.generate(prompt, **options):
        if isinstance(event, deciding):
            for tally in tallies:
                tally.add_experts(profile.distinct)
        if isinstance(event, clover_rt.BlockEvent):
            blocks.append(len(event.passes))
    assert isinstance(event, clover_rt.EndEvent)
    return event, blocks


def chosen(prompts: list[dict[str, str]], limit: int) -> list[dict[str, str]]:
    """Return about `limit` prompts, the same share of each kind; all of them where it is 0."""
    every = max(1, round(len(prompts) / limit)) if limit else 1
    return prompts[::every]


def measure(
    model: clover_rt.Model, prompts: list[dict[str, str]], args: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of every mode, by kind, and where self-speculation was unlike ar."""
    modes: dict[str, dict[str, Tally]] = {m: {"all": Tally()} for m in args.modes}
    unlike = []
    for done, case in enumerate(prompts):
        wanted = case["answer"]
        if args.think:
            wanted = f"{case['thought']}\n</think>\n\n{wanted}"
        tokens = {}
        for mode, tallies in modes.items():
            here = [tallies.setdefault(case["kind"], Tally())]
            if case["kind"] != "foreign":
                here.append(tallies["all"])
            options = {"mode": mode, "think": args.think, "max_new_tokens": 256}
            if mode == "diffusion" and args.threshold is not None:
                options["threshold"] = args.threshold
            end, blocks = answer(model, case["prompt"], options, here)
            is_right = end.text == wanted and end.finish_reason == "stop"
            for tally in here:
                tally.add(is_right, end, blocks)
            tokens[mode] = end.tokens
            if args.wrong and not is_right:
                print(f"{mode}: {case['prompt']!r} -> {end.text!r}", file=sys.stderr)
        if "ar" in tokens and tokens.get("self-spec", tokens["ar"]) != tokens["ar"]:
            unlike.append(case["prompt"])
        if sys.stderr.isatty():
            print(f"\r{done + 1} of {len(prompts)}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    out: dict[str, Any] = {
        mode: {name: tally.report() for name, tally in tallies.items() if tally.count}
        for mode, tallies in modes.items()
    }
    if {"ar", "self-spec"} <= set(modes):
        out["self_spec_unlike_ar"] = unlike
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="checkpoint folder or name (default: the built-in model)")
    parser.add_argument("--prompts", type=Path, default=HELD_OUT, help="JSON of prompts, answers")
    parser.add_argument("--modes", nargs="+", default=["ar", "diffusion", "self-spec"])
    parser.add_argument("--think", action="store_true", help="with thinking on")
    parser.add_argument("--threshold", type=float, help="default: the checkpoint's")
    parser.add_argument("--limit", type=int, default=0, help="about as many prompts (default: all)")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="exact", choices=("exact", "fast"))
    parser.add_argument("--wrong", action="store_true", help="print wrong answers to stderr")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    args = parser.parse_args()
    prompts = chosen(json.loads(args.prompts.read_text())["prompts"], args.limit)
    with clover_rt.load(
        args.model,
        backend=args.backend,
        device=args.device,
        precision=args.precision,
        context=CONTEXT,
    ) as model:
        results = measure(model, prompts, args)
    left_out = ("out", "wrong", "model", "prompts")
    report = {
        "benchmark": "acceptance",
        "schema": 1,
        **environment(),
        # names and not paths: results are compared between machines
        "settings": {
            **{name: value for name, value in vars(args).items() if name not in left_out},
            "model": Path(args.model or builtin.path()).name,
            "prompts": args.prompts.name,
            "context": CONTEXT,
        },
        "results": results,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
