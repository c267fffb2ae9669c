"""One slot of a loaded model, driven pass by pass and timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from clover_rt.api import Model
from clover_rt.plan import Profile
from clover_rt.spec import Kind, Pass, Segment, Wanted

PROMPT = 64
ROWS = 32


class Bench:
    """A slot with reserved pages and seeded tokens; `chunk` rows a prefill pass."""

    def __init__(self, model: Model, seed: int, chunk: int) -> None:
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
        """Return seeded ids, distinct as long as the vocabulary lasts."""
        size = min(self.plan.vocab_size, self.model.engine.facts.known_ids)
        return tuple(self.rng.choice(size, count, replace=count > size).tolist())

    def work(self, kind: Kind, ids: tuple[int, ...], wanted: Iterable[int]) -> Pass:
        """Return a pass of these rows at the end of the sequence; `wanted` rows are scored."""
        segment = Segment(kind, 0, 0, len(ids), self.length)
        return Pass((segment,), ids, wanted=tuple(Wanted(r, r + 1) for r in wanted))

    def fill(self, length: int) -> tuple[int, float]:
        """Commit random tokens up to a length; return (tokens, seconds)."""
        start, begin = time.perf_counter(), self.length
        while self.length < length:
            rows = min(self.chunk, length - self.length)
            self.plan.run(self.work(Kind.COMMIT, self.tokens(rows), ()))
            self.length += rows
        return self.length - begin, time.perf_counter() - start

    def timed(self, make: Callable[[], Pass], repeats: int) -> dict[str, Any]:
        """Time a pass that changes no state that matters; count its bytes once, profiled."""
        self.plan.run(make())
        profile = self.plan.profile = Profile()
        self.plan.run(make())
        self.plan.profile = None
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


def measure(bench: Bench, depth: int, repeats: int, mask: int | None) -> dict[str, Any]:
    """Return the figures at one KV depth: a prompt of 64 tokens, or as many as the depth says.

    A preview has 32 distinct seeded tokens and is asked for all rows; where the checkpoint has a
    mask id, a preview of masks alone is timed beside it: its rows choose few experts.
    """
    tokens, seconds = bench.fill(max(depth, PROMPT))
    out: dict[str, Any] = {"depth": depth, "committed": bench.length}
    if tokens:
        out["prefill"] = {
            "tokens": tokens,
            "chunk": bench.chunk,
            "tokens_per_s": tokens / seconds,
        }
    if mask is not None:
        every = range(ROWS)
        out["preview"] = bench.timed(
            lambda: bench.work(Kind.PREVIEW, bench.tokens(ROWS), every), repeats
        )
        out["preview_of_masks"] = bench.timed(
            lambda: bench.work(Kind.PREVIEW, (mask,) * ROWS, every), repeats
        )
    # a verify of one row is a decode step that leaves the state as it is
    kind = Kind.VERIFY if bench.plan.widest_draft else Kind.COMMIT
    out["decode"] = bench.timed(lambda: bench.work(kind, bench.tokens(1), (0,)), repeats)
    return out
