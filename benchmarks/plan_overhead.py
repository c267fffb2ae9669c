#!/usr/bin/env python3
"""Measure the Python overhead of a pass: 40 layers whose steps do nothing.

    plan_overhead.py [--layers 40] [--repeats 500]

Times `Plan.run` from the table of segments to the decoded picks: encoding, upload, every step,
download. The graph is the tiny golden checkpoint's with its layers repeated, in the release's
pattern; every kernel is bound to a step that returns at once. `layer ops` has one step a layer op,
`primitives` one a primitive. Prints one JSON object; the exit status is 1 if a median exceeds the
limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clover_rt.backend import Buffer, Device, Kernel, Step, Tensor, Usage
from clover_rt.bench.machine import environment
from clover_rt.graph import Graph
from clover_rt.model.build import Capacity, build_graph
from clover_rt.ops import OPS
from clover_rt.plan import Plan, bind
from clover_rt.spec import (
    Controls,
    Kind,
    Pass,
    Segment,
    Signature,
    StepLayout,
    Tier,
    Wanted,
)
from clover_rt.weights import Checkpoint, load_weights

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "conformance" / "clover_rt_conformance" / "golden" / "clover_tiny"
LIMIT_US = 1000.0
WARM_UP = 20
CONTROLS = Controls(0.2, 0.3, 1.1, 6.0, 4, 8, 9.0, 2, 5, think_end=310, stops=(317, 319))


def nothing() -> None:
    """The step of every kernel here."""


class NullKernel(Kernel):
    """Takes every signature and computes nothing."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Any,
        scratch: Tensor | None,
    ) -> Step:
        return nothing


class HostBuffer(Buffer):
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.bytes = np.zeros(nbytes, np.uint8)


class NullDevice(Device):
    """Memory of the host, and kernels that do nothing for the ops named."""

    name = "null"

    def __init__(self, ops: list[str]) -> None:
        kernel = NullKernel()
        self.kernels = dict.fromkeys(ops, kernel)

    def alloc(self, nbytes: int, usage: Usage) -> HostBuffer:
        return HostBuffer(nbytes)

    def free(self, buffer: Buffer) -> None:
        return None

    def copy(self, dst: Any, dst_offset: int, src: Any, src_offset: int, n: int) -> None:
        dst.bytes[dst_offset : dst_offset + n] = src.bytes[src_offset : src_offset + n]

    def upload(self, dst: Any, offset: int, src: Any) -> None:
        raw = src.reshape(-1).view(np.uint8)
        dst.bytes[offset : offset + raw.size] = raw

    def download(self, src: Any, offset: int, dst: Any) -> None:
        raw = dst.reshape(-1).view(np.uint8)
        raw[:] = src.bytes[offset : offset + raw.size]


def deep_graph(layers: int, layout: StepLayout) -> Graph:
    """Return the golden checkpoint's graph with its four layers repeated."""
    checkpoint = Checkpoint.open(GOLDEN)
    config, weights = checkpoint.config, load_weights(checkpoint)
    pattern = config.layer_types
    deep = {name: w for name, w in weights.items() if not name.startswith("layers.")}
    for i in range(layers):
        source = f"layers.{i % len(pattern)}."
        for name, weight in weights.items():
            if name.startswith(source):
                deep[f"layers.{i}.{name.removeprefix(source)}"] = weight
    types = tuple(pattern[i % len(pattern)] for i in range(layers))
    capacity = Capacity(slots=4, context=1024, pages=64, draft=32, layout=layout)
    return build_graph(replace(config, layer_types=types), deep, capacity)


def block(slot: int, row0: int, rows: int, kind: Kind) -> tuple[Segment, tuple[Wanted, ...]]:
    """Return a segment at position 64 whose rows are all wanted."""
    wanted = tuple(Wanted(row0 + r, r + 1, think_open=True) for r in range(rows))
    return Segment(kind, slot, row0, rows, 64), wanted


def passes() -> dict[str, Pass]:
    """Return one pass of each kind that decoding makes, with all controls on."""
    preview, every = block(0, 0, 32, Kind.PREVIEW)
    verify, judged = block(0, 0, 16, Kind.VERIFY)
    four = [block(s, 32 * s, 32, Kind.PREVIEW) for s in range(4)]
    return {
        "decode, 1 row": Pass(
            (Segment(Kind.COMMIT, 0, 0, 1, 64),),
            (7,),
            (CONTROLS,),
            (Wanted(0, 65),),
            page_deltas=((0, 1, 9),),
            count_deltas=((0, 7, 1),),
        ),
        "preview, 32 rows wanted": Pass((preview,), (318,) * 32, (CONTROLS,), every),
        "verify, 16 rows wanted, after an advance": Pass(
            (verify,),
            tuple(range(16)),
            (CONTROLS,),
            judged,
            count_deltas=tuple((0, i, 1) for i in range(8)),
            advances=((0, 8),),
        ),
        "four previews, 128 rows wanted": Pass(
            tuple(s for s, _ in four),
            (318,) * 128,
            (CONTROLS,) * 4,
            tuple(w for _, rows in four for w in rows),
        ),
        "prefill, 512 rows": Pass(
            (Segment(Kind.COMMIT, 0, 0, 512, 0),), tuple(i % 300 for i in range(512))
        ),
    }


def measure(plan: Plan, work: Pass, repeats: int) -> dict[str, Any]:
    """Return the pass's steps and its microseconds: the least and the median of the repeats."""
    for _ in range(WARM_UP):
        plan.run(work)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        plan.run(work)
        times.append(1e6 * (time.perf_counter() - start))
    median = statistics.median(times)
    return {
        "rows": len(work.tokens),
        "steps": plan.program(work.table, len(work.tokens)).launches,
        "advance_steps": len(plan.graph.advances) if work.advances else 0,
        "min_us": round(min(times), 1),
        "median_us": round(median, 1),
        "ok": median <= LIMIT_US,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the Python overhead of a pass.")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=500)
    options = parser.parse_args()
    layout = StepLayout()
    primitives = [name for name, spec in OPS.items() if spec.tier is Tier.PRIMITIVE]
    results = {}
    for name, ops in (("layer ops", list(OPS)), ("primitives", primitives)):
        device = NullDevice(ops)
        graph = deep_graph(options.layers, layout)
        plan = bind(graph, device, None, layout=layout, context=1024)
        results[name] = {
            what: measure(plan, work, options.repeats) for what, work in passes().items()
        }
    ok = all(r["ok"] for table in results.values() for r in table.values())
    report = {
        "benchmark": "plan_overhead",
        **environment(),
        "layers": options.layers,
        "repeats": options.repeats,
        "limit_us": LIMIT_US,
        "results": results,
        "ok": ok,
    }
    print(json.dumps(report, indent=1))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
