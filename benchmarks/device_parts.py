#!/usr/bin/env python3
"""The parts of device_check: each runs in a process of its own and tells what it has so far.

device_parts.py PART SETTINGS FILE
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HOT = ("expert_gemm", "block_scan", "confidence_topk")
PRECISIONS = ("fast", "exact")
MODES = ("diffusion", "ar", "self-spec")
PROMPTS = ("Hello", "Count from 3 to 9.")
TOKENS = 48
# seconds between two writes of what a long part has found
TELL_S = 1.0
SHOWN = 20
IN_A_ROW = 20
ROUNDS = 3
PROFILED = 5


class Told:
    """What a part has found, in a file that is whole at any time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: dict[str, Any] = {}
        self.last = 0.0

    def add(self, now: bool = True, **found: Any) -> None:
        """Add to what was found; `wrong` makes the part a failed one, with this reason."""
        self.found |= found
        if now or time.monotonic() - self.last > TELL_S:
            self.last = time.monotonic()
            temporary = self.file.with_suffix(".new")
            temporary.write_text(json.dumps(self.found))
            os.replace(temporary, self.file)


def doctor(told: Told, given: Mapping[str, Any]) -> None:
    """Probe the machine; wrong where the backend cannot be used."""
    from clover_rt.bench.machine import environment
    from clover_rt.doctor import Host, examine

    told.add(machine=environment())
    report = examine(Host.here(), [given["backend"]], quick=False)
    told.add(report=report)
    if report["exit_code"] > 1:
        told.add(wrong=f"backend {given['backend']} cannot be used here")


def bandwidth(told: Told, given: Mapping[str, Any]) -> None:
    """Measure what everything else is held against."""
    from clover_rt.bench.machine import copy_bandwidth, read_bandwidth
    from clover_rt.plugins import open_device

    device = open_device(given["backend"], given["device"])[1]
    memory = device.memory()
    told.add(device=device.name, memory_bytes=memory.total, free_bytes=memory.free)
    told.add(**(read_bandwidth() if given["backend"] == "cpu" else copy_bandwidth(device)))
    device.close()


def conformance(
    told: Told, given: Mapping[str, Any], ops: tuple[str, ...], precision: str | None = None
) -> None:
    """Judge ops case by case; counts and failures are told while it runs."""
    from clover_rt_conformance.command import Asked, judge

    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []

    def progress(done: int, total: int, result: Any) -> None:
        counts[result.outcome.value] += 1
        if result.outcome.is_wrong and len(failures) < SHOWN:
            about = {"id": result.id, "precision": result.precision, "detail": result.detail}
            failures.append(about)
        told.add(now=done == total, done=done, total=total, counts=counts, failures=failures)

    asked = Asked(
        given["backend"],
        given["device"],
        ops=ops,
        precision=precision,
        require=tuple(op for op in ops if op in HOT),
    )
    report = judge(asked, progress)
    told.add(device=report.about)
    if not report.passed:
        wrong = len(report.failures)
        told.add(wrong=f"{wrong} of {len(report.results)} cases are wrong {report.problems}")


def model(told: Told, given: Mapping[str, Any]) -> None:
    """Run prompts in every mode: in `exact` the tokens must be the cpu's."""
    from clover_rt.api import EndEvent, load

    def answers(backend: str, device: str | None, precision: str) -> dict[str, Any]:
        out = {}
        with load(None, backend=backend, device=device, precision=precision) as loaded:
            for mode in MODES:
                for prompt in PROMPTS:
                    events = loaded.generate(prompt, mode=mode, max_new_tokens=TOKENS)
                    end = next(e for e in events if isinstance(e, EndEvent))
                    out[f"{mode}: {prompt}"] = end
        return out

    want = answers("cpu", None, "exact")
    wrong = []
    for precision in ("exact", "fast"):
        got = answers(given["backend"], given["device"], precision)
        runs = {
            name: {
                "text": end.text,
                "same_tokens": end.tokens == want[name].tokens,
                "tokens_per_s": end.stats["tokens_per_s"],
                "ms_per_pass": end.stats["ms_per_pass"],
            }
            for name, end in got.items()
        }
        told.add(**{precision: runs})
        if precision == "exact":
            wrong = [name for name, run in runs.items() if not run["same_tokens"]]
    if wrong:
        told.add(wrong=f"other tokens than the cpu's in exact: {', '.join(wrong)}")


def checkpoint(told: Told, given: Mapping[str, Any]) -> None:
    """Write the checkpoint that the next parts time."""
    if given["model"]:
        told.add(given=Path(given["model"]).name)
        return
    from make_release import make_packed

    from clover_rt.spec import Format

    folder = Path(given["work"]) / "real"
    start = time.perf_counter()
    make_packed(folder, Format.Q4, given["layers"], given["vocab"])
    size = sum(file.stat().st_size for file in folder.iterdir())
    told.add(layers=given["layers"], gb=size / 1e9, write_s=time.perf_counter() - start)


def passes(told: Told, given: Mapping[str, Any]) -> None:
    """Time passes in `fast`, beside the card's bandwidth."""
    from clover_rt import bench

    for depth in given["depths"]:
        setting = bench.Setting(
            folder_of(given),
            given["backend"],
            given["device"],
            "fast",
            depths=[depth],
            repeats=given["repeats"],
        )
        report = bench.report(setting)
        told.add(**{f"depth {depth}": report}, text=bench.render(report).splitlines())


def kernels(told: Told, given: Mapping[str, Any]) -> None:
    """Time the steps of a pass one by one, and where torch can, the kernels behind them."""
    from clover_rt.api import load
    from clover_rt.bench.passes import PROMPT, Bench
    from clover_rt.plan import Place

    options = {"backend": given["backend"], "device": given["device"], "precision": "fast"}
    with load(folder_of(given), context=512, **options) as loaded:
        mask = loaded.engine.facts.mask_id if loaded.default_mode == "diffusion" else None
        bench = Bench(loaded, 0, 512)
        bench.fill(PROMPT)
        device = loaded.plan.devices[Place.DEVICE]
        for name, make in bench.kinds(mask).items():
            told.add(**{name: steps_alone(loaded.plan, make)})
        if hasattr(device, "torch"):
            for name, make in bench.kinds(mask).items():
                told.add(**{f"{name}, by torch": torch_kernels(loaded.plan, make)})


def steps_alone(plan: Any, make: Callable[[], Any]) -> dict[str, Any]:
    """Return ms by op of a pass: each step alone, and many times in a row.

    alone   with a wait behind each step, which costs `wait_ms` by itself
    in_row  without, but caches may hold the weights from the step before
    """
    work = make()
    plan.run(work)
    program = plan.program(work.table, len(work.tokens))
    devices = list(plan.devices.values())

    def wait() -> None:
        for device in devices:
            device.synchronize()

    def once(run: Callable[[], None], count: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        return 1e3 * (time.perf_counter() - start) / count

    rows: dict[str, Counter[str]] = {}
    for action in program.actions:
        row = rows.setdefault(action.node.op if action.node else "move", Counter())
        row["steps"] += 1
        row["alone_ms"] += min(once(action.step, 1) for _ in range(ROUNDS))
        row["in_row_ms"] += min(once(action.step, IN_A_ROW) for _ in range(ROUNDS))
    idle = min(once(lambda: None, 1) for _ in range(ROUNDS))
    ordered = sorted(rows.items(), key=lambda item: -item[1]["in_row_ms"])
    return {"wait_ms": idle, "ops": {op: dict(row) for op, row in ordered}}


def torch_kernels(plan: Any, make: Callable[[], Any]) -> dict[str, Any]:
    """Return launches and us of each kernel in a pass, as the card's own counters tell."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        return {"reason": "torch sees no card"}
    plan.run(make())
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(PROFILED):
                plan.run(make())
            torch.cuda.synchronize()
        rows = [
            {
                "kernel": event.key,
                "launches": event.count / PROFILED,
                "us": event.device_time_total / PROFILED,
            }
            for event in found.key_averages()
        ]
    # what the profiler needs of the driver may not be allowed here: the rest counts without it
    except (RuntimeError, AttributeError) as error:
        return {"reason": f"{type(error).__name__}: {error}"}
    return {"kernels": sorted(rows, key=lambda row: -row["us"])}


def folder_of(given: Mapping[str, Any]) -> str:
    return given["model"] or str(Path(given["work"]) / "real")


def other_ops() -> tuple[str, ...]:
    """Return every op but the hot ones, and the names of trials that are of none."""
    from clover_rt_conformance.command import Asked, listing_data

    cases = listing_data(Asked("cpu"))["cases"]
    return tuple(dict.fromkeys(c["op"] for c in cases if c["op"] not in HOT))


RUN: Mapping[str, Callable[[Told, Mapping[str, Any]], None]] = {
    "doctor": doctor,
    "bandwidth": bandwidth,
    "model": model,
    "checkpoint": checkpoint,
    "passes": passes,
    "kernels": kernels,
}


def main() -> None:
    name, given, file = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    # where nobody is left to end this process, the system does
    signal.alarm(int(given["limit_s"]) + 10)
    told = Told(file)
    told.add()
    if name == "conformance rest":
        conformance(told, given, other_ops())
    elif name.startswith("conformance "):
        _, op, precision = name.split()
        conformance(told, given, (op,), precision)
    else:
        RUN[name](told, given)


if __name__ == "__main__":
    main()
