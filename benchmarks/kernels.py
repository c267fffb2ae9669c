#!/usr/bin/env python3
"""Time the cpu backend's products alone: GB/s of weights against the bandwidth of the same run.

    kernels.py                                    every format, 1, 8 and 32 rows
    kernels.py --formats q4 --isa avx2 --threads 1 --clock cpu

Sizes are those of the release: a dense projection [8192, 2048], and experts [256, 512, 2048] of
which each row takes 8 seeded ones. Weights are more than the caches hold and are taken in turn.
With `--clock cpu` and one thread the time is that of the thread, so other programs matter less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from clover_rt.backend import Kernel, Step, Tensor, Usage
from clover_rt.bench.machine import environment, last_level_cache_bytes, read_bandwidth
from clover_rt.ops import expert_gemm, group_rows, linear
from clover_rt.ops.common import plain_table
from clover_rt.spec import (
    Format,
    HostWeight,
    OpSpec,
    Precision,
    Role,
    Signature,
    StepLayout,
    TableClass,
    Weight,
)
from clover_rt_cpu.device import CpuDevice

Array = np.ndarray
HIDDEN, WIDE, EXPERTS, INNER, CHOICES = 2048, 8192, 256, 512, 8


@dataclass
class Bench:
    """One device, and seeded numbers."""

    device: CpuDevice
    rng: np.random.Generator
    clock: Callable[[], float]

    def weight(self, fmt: str, shape: tuple[int, ...]) -> HostWeight:
        """Return random codes in a format, with scales that give values of about 0.02."""
        count, columns = int(np.prod(shape)), shape[-1]
        if fmt == "bf16":
            few = (self.rng.standard_normal(1 << 20) * 0.02).astype(ml_dtypes.bfloat16)
            return HostWeight.of(Weight(Format.BF16, shape, np.resize(few, count).reshape(shape)))
        scale = np.full((*shape[:-1], columns // 32), 0.0005, np.float16)
        few = self.rng.integers(0, 256, 1 << 20).astype(np.uint8)
        if fmt == "q8":
            codes = np.resize(few, count).reshape(shape).view(np.int8)
            return HostWeight.of(Weight(Format.Q8, shape, codes, scale, None, 32))
        codes = np.resize(few, count // 2).reshape(*shape[:-1], columns // 2)
        return HostWeight.of(Weight(Format.Q4, shape, codes, scale, None, 32))

    def tensor(self, array: Array) -> Tensor:
        buffer = self.device.alloc(array.nbytes, Usage.EDGE)
        self.device.upload(buffer, 0, np.ascontiguousarray(array))
        return Tensor(buffer, array.dtype, array.shape)

    def step(
        self,
        spec: OpSpec,
        given: Mapping[str, Array],
        weights: Mapping[str, HostWeight],
        prepared: Any,
        precision: Precision,
        axes: Mapping[str, int],
        **attrs: int,
    ) -> Step:
        """Return a bound step over fresh operands."""
        sig = signature(spec, given, weights, precision, axes, **attrs)
        kernel = self.device.kernels[spec.name]
        operands = {name: self.tensor(array) for name, array in given.items()}
        for o in spec.outputs:
            kind = np.int32 if o.dtype.value == "int32" else np.float32
            operands[o.name] = self.tensor(np.zeros(spec.shape(o.name, axes), kind))
        nbytes = kernel.scratch(sig)
        scratch = None
        if nbytes:
            buffer = self.device.alloc(nbytes, Usage.SCRATCH)
            scratch = Tensor(buffer, np.dtype(np.uint8), (nbytes,))
        return kernel.bind(sig, operands, prepared, scratch)

    def time(self, steps: list[Step], repeats: int) -> list[float]:
        """Return seconds a step, a number for each time that all were run."""
        out = []
        for _ in range(repeats):
            start = self.clock()
            for step in steps:
                step()
            out.append((self.clock() - start) / len(steps))
        return out


def signature(
    spec: OpSpec,
    given: Mapping[str, Array],
    weights: Mapping[str, HostWeight],
    precision: Precision,
    axes: Mapping[str, int],
    **attrs: int,
) -> Signature:
    names = [o.name for o in spec.operands if o.name in given or o.role is Role.OUTPUT]
    integers = ("order", "offsets")
    return Signature(
        spec.name,
        TableClass.COMMIT,
        precision,
        tuple(sorted(axes.items())),
        tuple((n, "int32" if n in integers else "float32") for n in names if n != "params"),
        tuple((n, w.format, w.group) for n, w in weights.items()),
        tuple(attrs.items()),
        StepLayout(),
    )


def dense(bench: Bench, fmt: str, precision: Precision, rows: list[int], repeats: int) -> Any:
    """Yield the figures of `linear`."""
    one = bench.weight(fmt, (WIDE, HIDDEN))
    copies = max(2, 3 * last_level_cache_bytes() // one.nbytes)
    axes = {"K": HIDDEN, "N": WIDE, "T": 1}
    kernel: Kernel = bench.device.kernels["linear"]
    sig = signature(linear.SPEC, {}, {"w": one}, precision, axes).static()
    prepared = [
        kernel.prepare(sig, {"w": bench.weight(fmt, (WIDE, HIDDEN))}) for _ in range(copies)
    ]
    for n in rows:
        x = bench.rng.standard_normal((n, HIDDEN)).astype(np.float32)
        given = {"params": plain_table(n).buffer, "x": x}
        steps = [
            bench.step(linear.SPEC, given, {"w": one}, p, precision, {**axes, "T": n})
            for p in prepared
        ]
        yield figures("linear", n, one.nbytes, 2.0 * n * HIDDEN * WIDE, bench.time(steps, repeats))


def experts(bench: Bench, fmt: str, precision: Precision, rows: list[int], repeats: int) -> Any:
    """Yield the figures of `expert_gemm`: each row takes 8 of 256 experts."""
    shapes = {
        "gate": (EXPERTS, INNER, HIDDEN),
        "up": (EXPERTS, INNER, HIDDEN),
        "down": (EXPERTS, HIDDEN, INNER),
    }
    weights = {name: bench.weight(fmt, shape) for name, shape in shapes.items()}
    each = sum(w.nbytes for w in weights.values()) // EXPERTS
    axes = {"D": HIDDEN, "E": EXPERTS, "F": INNER, "R": CHOICES, "T": 1}
    kernel: Kernel = bench.device.kernels["expert_gemm"]
    sig = signature(expert_gemm.SPEC, {}, weights, precision, axes, top_k=CHOICES).static()
    prepared = kernel.prepare(sig, weights)
    for n in rows:
        steps, used = [], 0
        for _ in range(8):
            ids = np.stack([bench.rng.permutation(EXPERTS)[:CHOICES] for _ in range(n)])
            params = plain_table(n)
            groups = group_rows.reference(params=params, ids=ids.astype(np.int32), experts=EXPERTS)
            used += int((np.diff(groups["offsets"]) > 0).sum())
            given = {
                "params": params.buffer,
                "x": bench.rng.standard_normal((n, HIDDEN)).astype(np.float32),
                **groups,
            }
            steps.append(
                bench.step(
                    expert_gemm.SPEC,
                    given,
                    weights,
                    prepared,
                    precision,
                    {**axes, "T": n},
                    top_k=CHOICES,
                )
            )
        flops = 6.0 * n * CHOICES * HIDDEN * INNER
        found = figures("expert_gemm", n, each * used / 8, flops, bench.time(steps, repeats))
        yield {**found, "experts": used / 8}


def figures(op: str, rows: int, nbytes: float, flops: float, seconds: list[float]) -> Any:
    best = min(seconds)
    return {
        "op": op,
        "rows": rows,
        "ms_min": 1e3 * best,
        "ms_median": 1e3 * statistics.median(seconds),
        "gb_per_s": nbytes / best / 1e9,
        "gigaflops_per_s": flops / best / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", default=["q4", "q8", "bf16"])
    parser.add_argument("--precisions", nargs="+", default=["fast", "exact"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--isa", help="amx, avx512, avx2, neon, numpy (default: the best there is)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    args = parser.parse_args()
    if args.clock == "cpu" and args.threads != 1:
        parser.error("--clock cpu counts one thread: give --threads 1")
    device = CpuDevice(args.threads, args.isa)
    clock = time.thread_time if args.clock == "cpu" else time.perf_counter
    bandwidth = read_bandwidth()
    results = []
    for fmt in args.formats:
        for precision in (Precision(p) for p in args.precisions):
            bench = Bench(device, np.random.default_rng(args.seed), clock)
            for measure in (dense, experts):
                for found in measure(bench, fmt, precision, args.rows, args.repeats):
                    share = found["gb_per_s"] / bandwidth["gb_per_s"]
                    row = {"format": fmt, "precision": precision.value, **found}
                    results.append({**row, "of_bandwidth": share})
    report = {
        "benchmark": "kernels",
        "schema": 1,
        **environment(),
        "isa": device.jit.isa.name if device.jit else "numpy",
        "threads": device.jit.team.count if device.jit else device.workers.count,
        "settings": {**vars(args), "out": None},
        "bandwidth": bandwidth,
        "results": results,
    }
    device.close()
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
