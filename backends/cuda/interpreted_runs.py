#!/usr/bin/env python3
"""Whole runs of tiny models on Triton's interpreter, their results kept in a table.

    interpreted_runs.py                               every run that the table lacks
    interpreted_runs.py --backend cuda --only _t03    of one backend, with these letters in its name
    interpreted_runs.py --list                        what there is and what is missing; runs none
    interpreted_runs.py --usual                       a diffusion run and four tokens, without table

`interpreted_runs.json` beside this file gets one line a run as it ends: a run takes minutes, all of
them hours, and one that was stopped goes on where it was. A result holds as long as the kernels,
triton and the checkpoint are those that it was made with.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from clover_rt import builtin, load
from clover_rt.backend import Device
from clover_rt.engine import EndEvent, Engine, TokensEvent
from clover_rt.plugins import open_device
from clover_rt.spec import Precision
from clover_rt_conformance.models.binding import plan_on
from clover_rt_conformance.models.golden import FACTS, FOLDER, request, runs
from clover_rt_cuda.backend import INTERPRET, INTERPRETER

TABLE = Path(__file__).with_name("interpreted_runs.json")
SOURCES = Path(__file__).parent / "clover_rt_cuda"
BACKENDS = ("cuda", "rocm")
TINY, BLOCK = "clover_tiny", 32
TOKENS, PROMPT = 16, "Sort these numbers: 41, 7, 23."
# tokens and passes of a run, and those that are expected; None: not told
Told = tuple[list[int], int | None, list[int], int | None]


@dataclass(frozen=True, slots=True)
class Case:
    """A run to compare; run "" is the built-in model's, whose peer is the cpu backend.

    tokens  how many are compared, None for the whole run with its number of passes
    """

    run: str
    tokens: int | None = None

    @property
    def name(self) -> str:
        part = "whole" if self.tokens is None else f"{self.tokens} tokens"
        return f"{self.run or 'clover-tiny'} {part}"

    @property
    def data(self) -> str:
        """Return a digest of the checkpoint and of what is expected."""
        if not self.run:
            return _digest((builtin.path() / "model.safetensors").read_bytes())
        tokens = runs(TINY)["decode"][self.run]["tokens"]
        weights = (FOLDER / TINY / "model.safetensors").read_bytes()
        return _digest(weights + json.dumps(tokens).encode())


def cases() -> list[Case]:
    """Return the runs, the shortest kinds first."""
    names = list(runs(TINY)["decode"])
    few = [n for n in names if n.endswith("_t03")]
    causal = [n for n in names if n.endswith("/ar")]
    drafts = [n for n in names if n.startswith("one/") and "self_spec" in n]
    rest = [n for n in names if n not in (*few, *causal, *drafts)]
    whole = [Case(name) for name in (*causal, *drafts)]
    blocks = [Case(name, BLOCK) for name in rest]
    return [*(Case(name) for name in few), Case("", TOKENS), *whole, *blocks]


def usual_cases() -> list[Case]:
    """Return the runs that each run of the tests makes anew."""
    return [Case("one/release/diffusion_t03"), Case("one/release/ar", 4)]


def made_with() -> dict[str, str]:
    """Return what results depend on: triton, and the kernels without comments and layout."""
    files = [*SOURCES.glob("kernels/*.py"), SOURCES / "kernel.py", SOURCES / "launch.py"]
    trees = [ast.dump(ast.parse(path.read_text())) for path in sorted(files)]
    return {"triton": version("triton"), "kernels": _digest("\n".join(trees).encode())}


def read() -> dict[str, Any]:
    """Return the table; an empty one where the file's results are of other kernels."""
    head = made_with()
    if TABLE.exists():
        table: dict[str, Any] = json.loads(TABLE.read_text())
        if {name: table[name] for name in head} == head:
            return table
    return {**head, "runs": {}}


def write(table: dict[str, Any]) -> None:
    """Write the table with one line a run."""
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(table["runs"].items())
    )
    head = ", ".join(f'"{name}": "{table[name]}"' for name in made_with())
    TABLE.write_text(f'{{{head}, "runs": {{\n{lines}\n}}}}\n')


def key_of(backend: str, case: Case) -> str:
    return f"{backend}: {case.name}"


def result(table: dict[str, Any], backend: str, case: Case) -> dict[str, Any] | None:
    """Return what is known of a run on its present checkpoint."""
    entry: dict[str, Any] | None = table["runs"].get(key_of(backend, case))
    return entry if entry is not None and entry["data"] == case.data else None


def compare(backend: str, case: Case) -> dict[str, Any]:
    """Run a case; return how many tokens and passes it took, and what is wrong ("" for nothing)."""
    started = time.monotonic()
    got, passes, want, wanted = (_golden if case.run else _built_in)(backend, case)
    wrong = ""
    if got != want:
        same = [a == b for a, b in zip(got, want, strict=False)]
        at = same.index(False) if False in same else len(same)
        wrong = f"token {at} of {len(want)}: {got[at:][:1]}, want {want[at:][:1]}"
    elif wanted not in (None, passes):
        wrong = f"{passes} passes, want {wanted}"
    seconds = round(time.monotonic() - started)
    told = {"tokens": len(got), "passes": passes, "seconds": seconds, "wrong": wrong}
    return {"data": case.data, **told}


def _golden(backend: str, case: Case) -> Told:
    """Return (tokens, passes, golden tokens, golden passes or None)."""
    known = runs(TINY)["decode"][case.run]
    plan = plan_on(TINY, _open(backend), Precision.EXACT)
    events = Engine(plan, FACTS[TINY]).generate(request(TINY, case.run))
    got, passes = _taken(events, case.tokens)
    plan.close()
    wanted = len(known["log"]) if case.tokens is None and "/diffusion" in case.run else None
    return got, passes, known["tokens"][: case.tokens], wanted


def _built_in(backend: str, case: Case) -> Told:
    """Return (tokens, passes, the cpu's tokens, the cpu's passes)."""
    told = []
    for name, device in ((backend, INTERPRETER.id), ("cpu", None)):
        with load(backend=name, device=device, context=512) as model:
            told.append(_taken(model.generate(PROMPT, max_new_tokens=case.tokens), None))
    (got, passes), (want, wanted) = told
    return got, passes, want, wanted


def _open(backend: str) -> Device:
    return open_device(backend, INTERPRETER.id)[1]


def _taken(events: Any, count: int | None) -> tuple[list[int], int | None]:
    """Return the first tokens of a run, or all of them, and the passes of one that ended."""
    got: list[int] = []
    for event in events:
        if isinstance(event, EndEvent):
            return list(event.tokens), event.stats["passes"]
        if isinstance(event, TokensEvent):
            got += event.ids
            if count is not None and len(got) >= count:
                break
    events.close()
    return got[:count], None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def chosen(backends: list[str], letters: str) -> Iterator[tuple[str, Case]]:
    """Yield runs in the order in which they are made."""
    for case in cases():
        for backend in backends:
            if letters in case.name:
                yield backend, case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--only", default="", help="letters of a run's name")
    parser.add_argument("--list", action="store_true", help="tell what is missing and run nothing")
    parser.add_argument("--usual", action="store_true", help="few runs, made anew and not kept")
    args = parser.parse_args()
    os.environ[INTERPRET] = "1"
    is_wrong = False
    if args.usual:
        for backend, case in product(args.backend, usual_cases()):
            entry = compare(backend, case)
            print(f"{key_of(backend, case)}: {entry}", flush=True)
            is_wrong |= bool(entry["wrong"])
        return int(is_wrong)
    for backend, case in chosen(args.backend, args.only):
        entry = result(read(), backend, case)
        if entry is None and not args.list:
            entry = compare(backend, case)
            # read again: another process may have written its own runs meanwhile
            table = read()
            table["runs"][key_of(backend, case)] = entry
            write(table)
        print(f"{key_of(backend, case)}: {entry or 'missing'}", flush=True)
        is_wrong |= bool(entry and entry["wrong"])
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
