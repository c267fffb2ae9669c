"""One slot of a loaded model, driven pass by pass and timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from clover_rt.api import Model
from clover_rt.bench.traffic import traffic
from clover_rt.graph import flatten
from clover_rt.ops import OPS
from clover_rt.ops.derived import run_nodes
from clover_rt.plan import Profile
from clover_rt.spec import Kind, Pass, Segment, StepParams, TableClass, Wanted

PROMPT = 64
ROWS = 32
Make = Callable[[], Pass]


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

    def kinds(self, mask: int | None) -> dict[str, Make]:
        """Return what makes a pass of each kind; none of them moves the end of the sequence.

        A preview has 32 distinct seeded tokens and is asked for all rows. Where the checkpoint has
        a mask id, a preview of masks alone stands beside it, whose rows choose few experts; and a
        commit of 32 rows alone, and with the preview of the next block behind it.
        """
        out: dict[str, Make] = {}
        if mask is not None:
            every = range(ROWS)
            out["preview"] = lambda: self.work(Kind.PREVIEW, self.tokens(ROWS), every)
            out["preview_of_masks"] = lambda: self.work(Kind.PREVIEW, (mask,) * ROWS, every)
        # a verify of one row is a decode step that leaves the state as it is
        kind = Kind.VERIFY if self.plan.widest_draft else Kind.COMMIT
        out["decode"] = lambda: self.work(kind, self.tokens(1), (0,))
        if mask is not None:
            out["commit"] = lambda: self.work(Kind.COMMIT, self.tokens(ROWS), ())
            if self.plan.accepts(TableClass.COMMIT_PREVIEW):
                out["commit_preview"] = self._commit_preview
        return out

    def _commit_preview(self) -> Pass:
        """Return a commit of a block and the preview of the next, scored, in one pass."""
        wanted = tuple(Wanted(r, r - ROWS + 1) for r in range(ROWS, 2 * ROWS))
        segments = (
            Segment(Kind.COMMIT, 0, 0, ROWS, self.length),
            Segment(Kind.PREVIEW, 0, ROWS, ROWS, self.length + ROWS),
        )
        return Pass(segments, self.tokens(2 * ROWS), wanted=wanted)

    def timed(self, make: Make, repeats: int) -> dict[str, Any]:
        """Time a pass; count its bytes once, profiled."""
        self.plan.run(make())
        counted = make()
        profile = self.plan.profile = Profile()
        self.plan.run(counted)
        self.plan.profile = None
        # a layer that runs whole tells its profile nothing of its experts
        distinct = profile.distinct or self._distinct(counted)
        weights, unread = self._weights(counted, distinct)
        seconds = []
        for _ in range(repeats):
            work = make()
            start = time.perf_counter()
            self.plan.run(work)
            seconds.append(time.perf_counter() - start)
        moved = sum(t.bytes for t in profile.ops.values()) - unread
        flops = sum(t.flops for t in profile.ops.values())
        best = min(seconds)
        return {
            "ms_min": 1e3 * best,
            "ms_median": 1e3 * statistics.median(seconds),
            "repeats": repeats,
            "gigabytes": moved / 1e9,
            "weight_gigabytes": weights / 1e9,
            "gb_per_s": moved / best / 1e9,
            "gigaflops_per_s": flops / best / 1e9,
            "distinct_experts_by_layer": distinct,
            "launches": sum(t.launches for t in profile.ops.values()),
        }

    def _distinct(self, work: Pass) -> list[int]:
        """Return the experts that each layer uses, by the rows in front of its router."""
        rows = self.plan.follow(work, {})
        params = StepParams(self.plan.layout)
        params.write(work)
        found = []
        for node in self.plan.graph.nodes:
            if node.op != "moe":
                continue
            before = node.operands["h"]
            values: dict[str, Any] = {"params": params, before: rows[before]}
            for name in (node.operands["post_norm"], node.operands["router"]):
                weight = self.plan.graph.values[name].weight
                assert weight is not None, f"{name} of {node.name} is a weight"
                values[name] = weight.whole()
            parts = flatten(node, work.table)
            route = next(i for i, part in enumerate(parts) if part.op == "router_topk")
            run_nodes(parts[: route + 1], values, OPS)
            ids = values[parts[route].operands["ids"]]
            found.append(len(np.unique(ids[ids >= 0])))
        return found

    def _weights(self, work: Pass, distinct: list[int]) -> tuple[float, float]:
        """Return the bytes of weights that a pass reads, and of those it was charged for but does
        not read: a profile charges a layer that runs whole with every expert it could choose."""
        live = {"T": len(work.tokens), "W": len(work.wanted), "L": 0}
        weights = unread = 0.0
        for action in self.plan.program(work.table, len(work.tokens)).actions:
            if action.node is None or action.sig is None:
                continue
            here = dict(live)
            if action.node.op in ("moe", "expert_gemm"):
                here["experts"] = distinct[int(action.node.layer.split(".")[1])]
            read = traffic(action.sig, here)
            weights += read.weights + read.experts
            if action.node.op == "moe":
                count = OPS["moe"].work
                unread += count(action.sig, live).bytes - count(action.sig, here).bytes
        return weights, unread


def measure(bench: Bench, depth: int, repeats: int, mask: int | None) -> dict[str, Any]:
    """Return the figures at one KV depth: a prompt of 64 tokens, or as many as the depth says."""
    tokens, seconds = bench.fill(max(depth, PROMPT))
    out: dict[str, Any] = {"depth": depth, "committed": bench.length}
    if tokens:
        out["prefill"] = {
            "tokens": tokens,
            "chunk": bench.chunk,
            "tokens_per_s": tokens / seconds,
        }
    for name, make in bench.kinds(mask).items():
        out[name] = bench.timed(make, repeats)
    return out
