"""A checkpoint in f32, f16 or bf16 to one in q8 or q4, tensor by tensor, in little memory.

`rules`   which tensor gets which format
`encode`  numbers to codes and scales; `native`: its inner loops, as generated code
`shards`  the files of the result and their headers
`write`   one file, streamed
`work`    the folder in which the result grows: locked, resumable, finished in one step
`verify`  the result read back and held against its source
`report`  sizes and errors as one dict, and as text
docs/formats.md is the layout of what is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clover_rt.errors import BadInput
from clover_rt.quantise.report import render, report
from clover_rt.quantise.rules import Keep, choose, keep_rule
from clover_rt.quantise.shards import SHARD_BYTES, cut
from clover_rt.quantise.verify import verify
from clover_rt.quantise.work import Work, plan_of
from clover_rt.quantise.write import Writer
from clover_rt.spec import Format
from clover_rt.spec.weight import GROUPS
from clover_rt.weights import Checkpoint

__all__ = ["Keep", "keep_rule", "quantise", "render"]

Progress = Callable[[int, int, str], None]
MOST_THREADS = 8


def quantise(
    checkpoint: Checkpoint,
    target: Path,
    storage: Format,
    group: int,
    *,
    keep: Sequence[Keep] = (),
    dry_run: bool = False,
    resume: bool = False,
    check: bool = False,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the checkpoint to a new folder in q8 or q4; return what was written, see `report`.

    storage      the format of matrices; embeddings and head are at least q8
    group        values of a row that share a scale in q4 tensors
    keep         rules for other formats; the first that matches a tensor counts
    dry_run      write nothing
    resume       go on where an earlier run was stopped; the files come out the same, bit by bit
    check        read the result back and add its errors
    on_progress  told (done, total, what) in bytes of the source
    Raises BadInput: CRT-1205 a group that the format does not have, and those of `choose` and
    `Work.open`. Raises BadCheckpoint: those of `choose`, `Writer.write` and `verify`.
    """
    groups = GROUPS.get(storage, ())
    if group not in groups:
        raise BadInput(
            what=f"{storage.value} in groups of {group} was asked for",
            evidence=f"its groups are of {', '.join(map(str, groups)) or 'no size'}",
            fix="use q4 with --group 32, 64 or 128, or q8 with --group 32",
            code="CRT-1205",
        )
    choices = choose(checkpoint, storage, group, keep)
    shards = cut(choices, group, shard_bytes)
    found = report(choices, shards) | {
        "source": str(checkpoint.folder),
        "target": str(target),
        "format": storage.value,
        "group": group,
        "skipped": dict(checkpoint.skipped),
        "dry_run": dry_run,
        "verified": None,
    }
    if dry_run:
        return found
    settings = {
        "format": storage.value,
        "group": group,
        "keep": [[k.glob, k.format.value if k.format else "bf16"] for k in keep],
    }
    work = Work(target, shards, plan_of(checkpoint, shards, settings))
    meter = _Meter(on_progress, found["bytes_before"])
    with work.open(resume):
        folder = work.target
        if not work.is_done:
            folder = work.folder
            left = work.left
            meter.add(sum(c.view.nbytes for s in shards if s not in left for c in s.choices))
            writer = Writer(_threads())
            try:
                for shard in left:
                    writer.write(folder, shard, meter.add)
            finally:
                writer.close()
            work.finish(checkpoint)
        if check:
            meter.start("verifying")
            found["verified"] = verify(folder, choices, _threads(), meter.add)
        work.rename()
    return found


class _Meter:
    """Counts the bytes of the source that are done, one phase after the other."""

    def __init__(self, on_progress: Progress | None, total: int) -> None:
        self._on_progress = on_progress
        self._total = total
        self.start("quantising")

    def start(self, phase: str) -> None:
        self._phase = phase
        self._done = self._told = 0

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        # a part in a thousand is what can be seen, and drawing takes time
        is_seen = self._done - self._told >= self._total // 1000 or self._done == self._total
        if self._on_progress is not None and is_seen:
            self._told = self._done
            self._on_progress(self._done, self._total, self._phase)


def _threads() -> int:
    """Return the processors that this process may use, up to what one disk keeps busy."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    return min(count, MOST_THREADS)
