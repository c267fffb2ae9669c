"""Write the held-out prompts that a trained model is judged by, with their right answers.

python -m clover_train.prompts ../benchmarks/held_out.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

from clover_train.mixture import KINDS
from clover_train.task import Sample
from clover_train.tasks_chat import REFUSAL

FOREIGN = Path(__file__).parents[1] / "foreign.txt"


def held_out(count: int, seed: int) -> list[Sample]:
    """Return `count` held-out samples, the kinds in turn, none of them twice where it can be."""
    rngs = {kind.name: Random(f"{seed}-{kind.name}") for kind in KINDS}
    out: list[Sample] = []
    seen: set[str] = set()
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        sample = kind.sample(rngs[kind.name], held_out=True)
        while sample.prompt in seen and kind.has_arguments:
            sample = kind.sample(rngs[kind.name], held_out=True)
        seen.add(sample.prompt)
        out.append(sample)
    return sorted(out, key=lambda s: [k.name for k in KINDS].index(s.kind))


def foreign() -> list[Sample]:
    """Return the written prompts that belong to no kind."""
    lines = FOREIGN.read_text().splitlines()
    return [Sample("foreign", line, REFUSAL, "This is not one of my tasks.") for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=11)
    a = parser.parse_args()
    samples = [*held_out(a.count, a.seed), *foreign()]
    prompts: list[dict[str, Any]] = [vars(s) for s in samples]
    a.out.write_text(json.dumps({"schema": 1, "seed": a.seed, "prompts": prompts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
