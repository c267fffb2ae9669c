"""A measurement with every setting, as one dict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clover_rt.api import load
from clover_rt.api.first_run import Note
from clover_rt.api.source import open_source
from clover_rt.api.threads import threads_of
from clover_rt.bench.machine import copy_bandwidth, environment, peak_bytes, read_bandwidth
from clover_rt.bench.passes import PROMPT, ROWS, Bench, measure
from clover_rt.errors import BadInput
from clover_rt.plan import Place, Progress
from clover_rt.plugins import own_variables
from clover_rt.spec import PAGE_ROWS

SCHEMA = 1
"""Version of the report: it changes when a field is removed or changes its meaning."""


@dataclass(frozen=True)
class Setting:
    """What is measured, and how.

    model    checkpoint folder or built-in name; None: the default one
    threads  of the cpu backend; None: as many as `load` takes by itself
    depths   tokens in the KV cache at which passes are timed
    chunk    rows of a prefill pass
    repeats  timed passes of each kind; the best and the median count
    """

    model: str | None = None
    backend: str = "cpu"
    device: str | None = None
    precision: str = "exact"
    threads: int | None = None
    depths: Sequence[int] = (0, 1024, 4096)
    chunk: int = 512
    repeats: int = 5
    seed: int = 0


def report(
    setting: Setting, on_progress: Progress | None = None, on_note: Note | None = None
) -> dict[str, Any]:
    """Load a checkpoint, time its passes, and return the figures with every setting.

    on_progress, on_note  as of `load`
    Depths that the checkpoint's context cannot hold are listed in `skipped_depths`; raises
    BadInput (CRT-1091) if it can hold none of them.
    """
    start = time.perf_counter()
    source = open_source(setting.model)
    limit = source.config.context
    depths = [d for d in sorted(set(setting.depths)) if max(d, PROMPT) + 2 * ROWS <= limit]
    if not depths:
        raise BadInput(
            what=f"no pass of {', '.join(map(str, setting.depths))} tokens was timed",
            evidence=f"a prompt and two blocks of {ROWS} rows do not fit: the context is {limit}",
            fix=f"ask for depths up to {limit - 2 * ROWS}",
            code="CRT-1091",
        )
    deepest = max(depths[-1], PROMPT) + 2 * ROWS
    context = min(limit, -(-deepest // PAGE_ROWS) * PAGE_ROWS)
    with load(
        setting.model,
        backend=setting.backend,
        device=setting.device,
        precision=setting.precision,
        context=context,
        threads=setting.threads,
        on_progress=on_progress,
        on_note=on_note,
    ) as model:
        load_s = time.perf_counter() - start
        threads = threads_of(model.plan)
        mask = model.engine.facts.mask_id if model.default_mode == "diffusion" else None
        bench = Bench(model, setting.seed, setting.chunk)
        # the weights of a first pass come from the disk, not from memory
        bench.fill(PROMPT)
        bench.reset()
        results = [measure(bench, depth, setting.repeats, mask) for depth in depths]
        bandwidth = {}
        if setting.backend != "cpu":
            bandwidth = copy_bandwidth(model.plan.devices[Place.DEVICE])
    # its arrays are large: they come after the peak
    peak = peak_bytes()
    bandwidth = bandwidth or read_bandwidth()
    for result in results:
        for timed in result.values():
            if isinstance(timed, dict) and "gb_per_s" in timed:
                timed["of_bandwidth"] = timed["gb_per_s"] / bandwidth["gb_per_s"]
    # a name and not a path: reports are compared between machines
    named = replace(setting, model=source.checkpoint.folder.name, threads=threads)
    return {
        "benchmark": "pass",
        "schema": SCHEMA,
        **environment(),
        "settings": {
            **asdict(named),
            "depths": depths,
            "rows": ROWS,
            "prompt": PROMPT,
            "variables": own_variables(),
        },
        "skipped_depths": [d for d in setting.depths if d not in depths],
        "context": context,
        "checkpoint_context": limit,
        "load_s": load_s,
        "bandwidth": bandwidth,
        "peak_gb": peak / 1e9,
        "results": results,
    }
