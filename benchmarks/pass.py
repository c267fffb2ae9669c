#!/usr/bin/env python3
"""Time the passes of a checkpoint on a backend: preview, one-token decode, prefill; by depth.

    pass.py                                the built-in model
    pass.py --model DIR --depths 0 1024    a checkpoint, at these KV depths

Prints one JSON object with every setting. A preview has 32 rows of 32 distinct seeded tokens after
a 64-token prompt; its distinct experts a layer are counted. GB/s are the bytes that a pass must
read (weights of the experts hit, dense weights, state, KV rows) over its time, and `of_bandwidth`
is that over the memory bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import environment, peak_bytes, read_bandwidth

import clover_rt
from clover_rt import builtin
from clover_rt.plan import Profile
from clover_rt.spec import PAGE_ROWS, Kind, Pass, Segment, Wanted
from clover_rt.weights import Checkpoint

PROMPT = 64
ROWS = 32


class Bench:
    """One slot of a loaded model, driven pass by pass."""

    def __init__(self, model: clover_rt.Model, seed: int, chunk: int) -> None:
        self.model = model
        self.plan = model.plan
        self.rng = np.random.default_rng(seed)
        self.chunk = min(chunk, model.plan.max_rows)
        self.reset()
        vocab = self.plan.vocab_size
        self.plan.load_request(0, np.zeros(vocab, np.int32), np.zeros(vocab, np.bool_))
        pages = tuple((0, i, i) for i in range(self.plan.pages))
        limit = self.plan.layout.page_deltas
        for first in range(0, len(pages), limit):
            self.plan.run(Pass(page_deltas=pages[first : first + limit]))

    def reset(self) -> None:
        """Start again from an empty sequence; the pages stay reserved."""
        self.length = 0
        self.plan.reset_slot(0)

    def tokens(self, count: int) -> tuple[int, ...]:
        """Return distinct seeded ids."""
        size = min(self.plan.vocab_size, self.model.engine.facts.known_ids)
        return tuple(self.rng.choice(size, count, replace=count > size).tolist())

    def commit(self, rows: int, wanted: bool = False) -> None:
        work = self.work(Kind.COMMIT, rows, range(rows - 1, rows) if wanted else ())
        self.plan.run(work)
        self.length += rows

    def work(self, kind: Kind, rows: int, wanted: Any) -> Pass:
        segment = Segment(kind, 0, 0, rows, self.length)
        asks = tuple(Wanted(r, r + 1) for r in wanted)
        return Pass((segment,), self.tokens(rows), wanted=asks)

    def fill(self, length: int) -> tuple[int, float]:
        """Commit random tokens up to a length; return (tokens, seconds)."""
        start, begin = time.perf_counter(), self.length
        while self.length < length:
            self.commit(min(self.chunk, length - self.length))
        return self.length - begin, time.perf_counter() - start

    def timed(self, make: Callable[[], Pass], repeats: int) -> dict[str, Any]:
        """Time a pass that changes no state that matters; count its bytes once, profiled."""
        self.plan.run(make())
        self.plan.profile = Profile()
        self.plan.run(make())
        profile, self.plan.profile = self.plan.profile, None
        seconds = []
        for _ in range(repeats):
            work = make()
            start = time.perf_counter()
            self.plan.run(work)
            seconds.append(time.perf_counter() - start)
        moved = sum(t.bytes for t in profile.ops.values())
        flops = sum(t.flops for t in profile.ops.values())
        best = min(seconds)
        return {
            "ms_min": 1e3 * best,
            "ms_median": 1e3 * statistics.median(seconds),
            "repeats": repeats,
            "gigabytes": moved / 1e9,
            "gb_per_s": moved / best / 1e9,
            "gigaflops_per_s": flops / best / 1e9,
            "distinct_experts_by_layer": profile.distinct,
            "launches": sum(t.launches for t in profile.ops.values()),
        }


def measure(bench: Bench, depth: int, repeats: int) -> dict[str, Any]:
    """Return the figures at one KV depth: a prompt of 64 tokens, or as many as the depth says."""
    tokens, seconds = bench.fill(max(depth, PROMPT))
    out: dict[str, Any] = {"depth": depth, "committed": bench.length}
    if tokens:
        out["prefill"] = {
            "tokens": tokens,
            "chunk": bench.chunk,
            "tokens_per_s": tokens / seconds,
        }
    if bench.model.default_mode == "diffusion":
        out["preview"] = bench.timed(lambda: bench.work(Kind.PREVIEW, ROWS, range(ROWS)), repeats)
    # a verify of one row is a decode step that leaves the state as it is
    kind = Kind.VERIFY if bench.plan.widest_draft else Kind.COMMIT
    out["decode"] = bench.timed(lambda: bench.work(kind, 1, (0,)), repeats)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="checkpoint folder (default: the built-in model)")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="exact", choices=("exact", "fast"))
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 1024, 4096])
    parser.add_argument("--chunk", type=int, default=512, help="rows of a prefill pass")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    args = parser.parse_args()
    bandwidth = read_bandwidth()
    start = time.perf_counter()
    deepest = max(args.depths) + PROMPT + ROWS
    limit = Checkpoint.open(args.model or builtin.path()).config.context
    context = min(limit, -(-deepest // PAGE_ROWS) * PAGE_ROWS)
    with clover_rt.load(
        args.model,
        backend=args.backend,
        device=args.device,
        precision=args.precision,
        context=context,
    ) as model:
        load_s = time.perf_counter() - start
        bench = Bench(model, args.seed, args.chunk)
        # the weights of a first pass come from the disk, not from memory
        bench.fill(PROMPT)
        bench.reset()
        depths = [d for d in sorted(args.depths) if max(d, PROMPT) + ROWS <= context]
        results = [measure(bench, depth, args.repeats) for depth in depths]
    for result in results:
        for name in ("preview", "decode"):
            if name in result:
                share = result[name]["gb_per_s"] / bandwidth["gb_per_s"]
                result[name]["of_bandwidth"] = share
    report = {
        "benchmark": "pass",
        "schema": 1,
        **environment(),
        # a name and not a path: results are compared between machines
        "settings": {
            **{name: value for name, value in vars(args).items() if name != "out"},
            "model": Path(args.model or builtin.path()).name,
            "rows": ROWS,
            "prompt": PROMPT,
        },
        "skipped_depths": [d for d in args.depths if d not in depths],
        "context": context,
        "load_s": load_s,
        "bandwidth": bandwidth,
        "peak_gb": peak_bytes() / 1e9,
        "results": results,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
