#!/usr/bin/env python3
"""The parts of device_check: each runs in a process of its own and tells what it has so far.

device_parts.py PART SETTINGS FILE
"""

from __future__ import annotations

import faulthandler
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
# after so long over its limit a part that nobody ended ends itself
LATE_S = 5
# and after so long again a thread that needs no Python ends it
HUNG_S = 5
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
            self.write()

    def write(self) -> None:
        self.last = time.monotonic()
        temporary = self.file.with_suffix(".new")
        temporary.write_text(json.dumps(self.found))
        os.replace(temporary, self.file)


def machine(told: Told, given: Mapping[str, Any]) -> None:
    """Tell what stands behind all else: the machine, and the devices with driver and engine."""
    from clover_rt.bench.machine import environment
    from clover_rt.doctor import Host
    from clover_rt.doctor.backends import as_dict
    from clover_rt.doctor.redact import redact
    from clover_rt.plugins import discover, status

    told.add(machine=environment())
    name = given["backend"]
    found = discover(only=name).backends or discover().backends
    rows = [as_dict(status(item)) for known, item in found.items() if known == name]
    told.add(backends=redact(rows, Host.here()))


def opened(told: Told, given: Mapping[str, Any]) -> None:
    """Open the device and no more: the parts behind find done what is done once on a card."""
    from clover_rt.plugins import open_device

    machine(told, given)
    start = time.perf_counter()
    device = open_device(given["backend"], given["device"])[1]
    device.on_progress = lambda done, total, what: told.add(now=False, doing=what)
    device.synchronize()
    told.add(device=device.name, open_s=time.perf_counter() - start)
    # asked for the first time, HIP tries graphs in a process of its own
    graphs = getattr(device, "has_graphs", None)
    told.add(has_graphs=graphs, settled_s=time.perf_counter() - start)
    device.close()


def doctor(told: Told, given: Mapping[str, Any]) -> None:
    """Probe the machine; wrong where the backend cannot be used."""
    from clover_rt.doctor import Host, examine

    machine(told, given)
    report = examine(
        Host.here(),
        [given["backend"]],
        on_progress=lambda name: told.add(looking_at=name),
        device=given["device"],
    )
    told.add(report=report)
    if not any(row["passed"] and not row["only_by_name"] for row in report["tests"]):
        told.add(wrong=report["verdict"])


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
    from clover_rt.spec import Precision
    from clover_rt_conformance.catalog import Choice
    from clover_rt_conformance.client import Workers
    from clover_rt_conformance.report import Report
    from clover_rt_conformance.run import run_suite

    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    right = wrong = 0

    def progress(done: int, total: int, result: Any) -> None:
        nonlocal right, wrong
        counts[result.outcome.value] += 1
        right += result.outcome.is_right
        wrong += result.outcome.is_wrong
        if result.outcome.is_wrong and len(failures) < SHOWN:
            about = {"id": result.id, "precision": result.precision, "detail": result.detail}
            failures.append(about)
        found = {"done": done, "total": total, "right": right, "counts": counts}
        if wrong:
            found |= {"failures": failures, "wrong": f"{wrong} of {done} cases are wrong"}
        told.add(now=done == total, **found)

    precisions = tuple(Precision) if precision is None else (Precision(precision),)
    require = tuple(op for op in ops if op in HOT)
    report = Report(given["backend"], given["device"])
    runner = Workers(given["backend"], given["device"])
    try:
        told.add(about=runner.about)
        run_suite(report, runner, Choice(ops, precisions=precisions, require=require), progress)
    finally:
        runner.close()
    if not report.passed:
        bad = f"{len(report.failures)} of {len(report.results)}"
        told.add(wrong=f"{bad} cases are wrong {report.problems}")


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
    "open": opened,
    "doctor": doctor,
    "bandwidth": bandwidth,
    "model": model,
    "checkpoint": checkpoint,
    "passes": passes,
    "kernels": kernels,
}


class Stopped(KeyboardInterrupt):
    """The part was told to end; unlike SystemExit it is not taken for a plugin's failure."""


def stop(number: int, frame: Any) -> None:
    """End in order: what was started ends first, and what was found is written."""
    for own in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(own, signal.SIG_IGN)
    raise Stopped(128 + number)


def main() -> int:
    name, given, file = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, stop)
    late = int(given["limit_s"]) + LATE_S
    signal.alarm(late)
    faulthandler.dump_traceback_later(late + HUNG_S, exit=True)
    told = Told(file)
    told.add()
    try:
        run(name, told, given)
    except Stopped as error:
        return int(error.args[0])
    finally:
        told.write()
    return 0


def run(name: str, told: Told, given: Mapping[str, Any]) -> None:
    from clover_rt.doctor.child import end_with
    from clover_rt.errors import CloverError

    end_with(os.getppid(), "SIGTERM")
    try:
        if name == "conformance rest":
            conformance(told, given, other_ops())
        elif name.startswith("conformance "):
            _, op, precision = name.split()
            conformance(told, given, (op,), precision)
        else:
            RUN[name](told, given)
    except CloverError as error:
        told.add(wrong=str(error))


if __name__ == "__main__":
    sys.exit(main())
