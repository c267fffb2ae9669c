"""Held-out prompts through the runtime: exact answers, passes and rounds by kind, as JSON.

python -m clover_train.evaluate CHECKPOINT --per-kind 20
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import clover_rt
from clover_train.mixture import KINDS
from clover_train.task import Sample
from clover_train.tasks_chat import REFUSAL

FOREIGN = Path(__file__).parents[1] / "foreign.txt"


def prompts(per_kind: int, seed: int) -> Iterator[Sample]:
    """Yield held-out samples of every kind, and as kind `foreign` the written foreign prompts."""
    for kind in KINDS:
        rng = Random(f"{seed}-{kind.name}")
        for _ in range(per_kind):
            yield kind.sample(rng, held_out=True)
    lines = FOREIGN.read_text().splitlines()
    for line in lines[: max(per_kind, len(lines) if per_kind >= 20 else 0)]:
        yield Sample("foreign", line, REFUSAL, "This is not one of my tasks.")


class Tally:
    """Sums over the answers of one kind and mode."""

    def __init__(self) -> None:
        self.count = self.right = self.tokens = self.passes = self.commits = self.rounds = 0
        self.several = 0
        self.histogram: Counter[int] = Counter()

    def add(self, right: bool, end: clover_rt.EndEvent, blocks: list[int]) -> None:
        self.count += 1
        self.right += right
        self.tokens += len(end.tokens)
        self.passes += int(end.stats["passes"])
        self.commits += int(end.stats["commits"])
        self.rounds += int(end.stats["rounds"])
        self.several += any(n > 1 for n in blocks)
        self.histogram.update(blocks)

    def merged(self, other: Tally) -> Tally:
        out = Tally()
        for key in vars(out):
            setattr(out, key, getattr(self, key) + getattr(other, key))
        return out

    def report(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "prompts": self.count,
            "exact": round(self.right / self.count, 4),
            "tokens": round(self.tokens / self.count, 1),
        }
        if self.histogram:
            out["tokens_a_pass"] = round(self.tokens / self.passes, 2)
            out["with_commits"] = round(self.tokens / (self.passes + self.commits), 2)
            out["several_passes"] = round(self.several / self.count, 3)
            out["passes_a_block"] = dict(sorted(self.histogram.items()))
        if self.rounds:
            out["tokens_a_round"] = round(self.tokens / self.rounds, 2)
        return out


def run(
    model: clover_rt.Model, sample: Sample, mode: str, think: bool
) -> tuple[clover_rt.EndEvent, list[int]]:
    """Return the end of one generation and the passes of each block."""
    blocks = []
    for event in model.generate(sample.prompt, mode=mode, think=think, max_new_tokens=256):
        if isinstance(event, clover_rt.BlockEvent):
            blocks.append(len(event.passes))
    assert isinstance(event, clover_rt.EndEvent)
    return event, blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--per-kind", type=int, default=20)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--modes", nargs="+", default=["ar", "diffusion", "self-spec"])
    parser.add_argument("--think", action="store_true")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--show", action="store_true", help="print wrong answers to stderr")
    a = parser.parse_args()
    tallies: dict[str, dict[str, Tally]] = {m: {} for m in a.modes}
    differ = 0
    with clover_rt.load(a.checkpoint, backend=a.backend, context=1024) as model:
        for sample in prompts(a.per_kind, a.seed):
            wanted = sample.answer
            if a.think:
                wanted = f"{sample.thought}\n</think>\n\n{sample.answer}"
            tokens = {}
            for mode in a.modes:
                end, blocks = run(model, sample, mode, a.think)
                tokens[mode] = end.tokens
                right = end.text == wanted and end.finish_reason == "stop"
                tallies[mode].setdefault(sample.kind, Tally()).add(right, end, blocks)
                if a.show and not right:
                    print(f"{mode} {sample.prompt!r}: {end.text!r}", file=sys.stderr)
            differ += "ar" in tokens and tokens.get("self-spec", tokens["ar"]) != tokens["ar"]
    report: dict[str, Any] = {"self_spec_unlike_ar": differ}
    for mode, kinds in tallies.items():
        total = Tally()
        for name, tally in kinds.items():
            if name != "foreign":
                total = total.merged(tally)
        report[mode] = {"all": total.report()}
        report[mode] |= {name: tally.report() for name, tally in kinds.items()}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
