"""The folder in which a result grows, until it gets its name in one step.

    OUT.partial/plan.json     what is being made of what: a resume must mean the same
    OUT.partial/checkpoint/   finished files, and one that ends in .part
    OUT                       that folder, renamed when everything is in it

A process holds a lock on OUT.partial while it works.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clover_rt.errors import BadInput
from clover_rt.quantise.lock import alone_in
from clover_rt.quantise.shards import Shard, index, tool
from clover_rt.quantise.write import PART, sync
from clover_rt.weights import Checkpoint
from clover_rt.weights.checkpoint import CONFIG
from clover_rt.weights.folder import INDEX
from clover_rt.weights.json_file import read_object

COPIED = (".json", ".jinja", ".txt", ".model")
LEGAL = ("LICENSE", "LICENCE", "NOTICE")
FALSE_FIELDS = ("dtype", "torch_dtype")
"""Fields of config.json that say how the weights are stored, and are not copied."""

SPARE_BYTES = 64_000_000
"""Room for the small files, and for what a file system needs of its own."""

Plan = Mapping[str, Any]


class Work:
    """A result in the making.

    target  what it will be called; folder is where it grows
    """

    def __init__(self, target: Path, shards: Sequence[Shard], plan: Plan) -> None:
        # without a trailing slash, and with a name where it is "."
        self.target = Path(os.path.abspath(target))
        # not `with_name`, which refuses "/"
        self.partial = self.target.parent / (self.target.name + ".partial")
        self.folder = self.partial / "checkpoint"
        self._shards = shards
        # as it will be read back: tuples are lists there
        self._plan = json.loads(json.dumps(plan))

    @property
    def is_done(self) -> bool:
        """Does the target hold these very shards: did an earlier run get to the end?"""
        return all(shard.is_whole(self.target / shard.name) for shard in self._shards)

    @property
    def left(self) -> list[Shard]:
        """The shards that are not there yet."""
        return [s for s in self._shards if not s.is_whole(self.folder / s.name)]

    @contextmanager
    def open(self, resume: bool) -> Iterator[None]:
        """Make the folder, or take up a leftover; locked until the context ends.

        Raises BadInput: CRT-1210 the target exists, CRT-1211 a leftover without `resume`,
        CRT-1212 a leftover of other settings or another source, CRT-1213 too little room,
        CRT-1214 another process is at work, CRT-1215 the folder cannot be written.
        """
        try:
            self._refuse_existing(resume)
            self._check_room()
            self.partial.mkdir(exist_ok=True)
            with alone_in(self.partial):
                self._take_up()
                yield
        except OSError as error:
            raise self._unwritable(error) from error

    def finish(self, checkpoint: Checkpoint) -> None:
        """Add the index and the small files."""
        if len(self._shards) > 1:
            _write(self.folder / INDEX, index(self._shards).encode())
        for name in small_files(checkpoint.folder):
            data = (checkpoint.folder / name).read_bytes()
            if name == CONFIG:
                data = json.dumps(true_config(checkpoint.folder / name), indent=1).encode()
            _write(self.folder / name, data)

    def rename(self) -> None:
        """Give the result its name, unless it has it, and take the rest away."""
        if self.folder.exists():
            self.folder.rename(self.target)
            sync(self.target.parent)
        self._plan_path.unlink(missing_ok=True)
        self.partial.rmdir()

    @property
    def _plan_path(self) -> Path:
        return self.partial / "plan.json"

    def _refuse_existing(self, resume: bool) -> None:
        if os.path.lexists(self.target) and not (resume and self.is_done):
            raise BadInput(
                what=f"the result was to be written to {self.target}",
                evidence=f"{self.target} exists",
                fix="name a folder that does not exist yet",
                code="CRT-1210",
            )
        if os.path.lexists(self.partial) and not resume:
            raise BadInput(
                what=f"the result was to be written to {self.target}",
                evidence=f"{self.partial} is what an earlier run left, or one that is at work",
                fix="go on with --resume, or remove that folder",
                code="CRT-1211",
            )

    def _check_room(self) -> None:
        if self.is_done:
            return
        need = sum(shard.nbytes for shard in self.left) + SPARE_BYTES
        # what is half written is written again
        held = sum(path.stat().st_size for path in self.folder.glob(f"*{PART}"))
        free = shutil.disk_usage(self.target.parent).free + held
        if need > free:
            raise BadInput(
                what=f"the result was to be written to {self.target}",
                evidence=f"it needs {need:,} bytes more, and {free:,} are free there",
                fix="make room, or name a folder on another disk",
                code="CRT-1213",
            )

    def _take_up(self) -> None:
        """Check a leftover's plan, or write the plan of a new result."""
        if self._plan_path.exists():
            self._compare(read_object(self._plan_path))
        elif self.folder.exists():
            raise self._other(f"no {self._plan_path.name} is in it, as an earlier run leaves one")
        else:
            _write(self._plan_path, json.dumps(self._plan, indent=1).encode())
        if not self.is_done:
            self.folder.mkdir(exist_ok=True)
        for path in self.folder.glob(f"*{PART}"):
            path.unlink()

    def _compare(self, before: Plan) -> None:
        for field, value in self._plan.items():
            if before.get(field) != value:
                then, now = json.dumps(before.get(field)), json.dumps(value)
                raise self._other(f"{field} of its plan: {then} then, {now} now")

    def _other(self, text: str) -> BadInput:
        return BadInput(
            what=f"what lies in {self.partial} is no part of this result",
            evidence=text,
            fix="use the settings and the source of the first run, or remove that folder",
            code="CRT-1212",
        )

    def _unwritable(self, error: OSError) -> BadInput:
        return BadInput(
            what=f"the result was to be written to {self.target}",
            evidence=f"{error.filename or self.partial}: {error.strerror or error}",
            fix="name a folder that can be written to, with room; --resume goes on with what is "
            "done",
            code="CRT-1215",
        )


def plan_of(checkpoint: Checkpoint, shards: Sequence[Shard], settings: Plan) -> Plan:
    """Return all that decides the bytes of a result: tool, settings, source files, shards."""
    files = {id(view.file): view.file.path for view in checkpoint.tensors.values()}
    stats = {path.name: path.stat() for path in files.values()}
    config = (checkpoint.folder / CONFIG).read_bytes()
    return {
        "tool": tool(),
        **settings,
        "config": hashlib.sha256(config).hexdigest(),
        "source": {n: [stats[n].st_size, stats[n].st_mtime_ns] for n in sorted(stats)},
        "shards": {shard.name: shard.nbytes for shard in shards},
    }


def small_files(folder: Path) -> list[str]:
    """Return the names of the files that go with the weights: settings, tokenizer, licence."""
    found = []
    for path in sorted(folder.iterdir()):
        is_legal = path.name.upper().startswith(LEGAL)
        is_index = path.name.endswith(".index.json")
        if path.is_file() and (is_legal or path.suffix in COPIED) and not is_index:
            found.append(path.name)
    return found


def true_config(path: Path) -> dict[str, Any]:
    """Return config.json without what is no longer true of the weights."""
    config = read_object(path)
    for table in (config, config.get("text_config")):
        if isinstance(table, dict):
            for name in FALSE_FIELDS:
                table.pop(name, None)
    return config


def _write(path: Path, data: bytes) -> None:
    """Write a file that is whole or absent."""
    part = path.with_name(path.name + PART)
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync(path.parent)
