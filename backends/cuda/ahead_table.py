#!/usr/bin/env python3
"""Compile every program that the release's plan takes, for cards that are not here, into a table.

    ahead_table.py                                       every target, precision and weight format
    ahead_table.py --targets sm_90 gfx1201 --weights q4  some of it
    ahead_table.py --usual ...                           of a token and a block
    ahead_table.py --list                                how many programs there are; compiles none

The plan is that of the 40-layer release, bound on a card without memory. `ahead-VERSION.json`
beside this file, one for each version of Triton, gets one line a program and target as it is
compiled. What it has is not compiled again, so a run that was stopped goes on where it was; delete
the file to begin anew. A run of everything drops the programs that the plan no longer takes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import triton

from clover_rt import fit
from clover_rt.fit.weights import MATRICES
from clover_rt.model.build import build_graph
from clover_rt.model.config import ModelConfig
from clover_rt.plan import Plan, bind
from clover_rt.plan.placement import TOPS
from clover_rt.plan.program import bind_program
from clover_rt.quantise.rules import FINE
from clover_rt.spec import Format, HostWeight, Node, Precision, TableClass
from clover_rt.weights import Checkpoint, load_weights
from clover_rt_cuda.ahead import (
    TARGETS,
    Compiled,
    Recorder,
    compiled,
    name_of,
    programs,
    zeros_weight,
)
from clover_rt_cuda.launch import Launch
from clover_rt_cuda.tuning import Tuning

FOLDER = Path(__file__).parent
RELEASE = Path(__file__).parents[2] / "benchmarks" / "make_release.py"
LAYERS, VOCAB, CONTEXT, SLOTS = 40, 248320, 32768, 2
GROUPS = {Format.Q4: 64, Format.Q8: 32, Format.BF16: 0}
FORMATS = {f.value: f for f in GROUPS}
NUMBERS = ("registers", "spills", "shared", "instructions", "matrix")


def release_weights(folder: Path) -> tuple[ModelConfig, dict[str, HostWeight]]:
    """Return the release's config and its weights, over files of holes in a folder."""
    make = runpy.run_path(str(RELEASE))["make_release"]
    make(folder, LAYERS, VOCAB, sparse=True)
    checkpoint = Checkpoint.open(folder)
    return checkpoint.config, load_weights(checkpoint)


def stored_as(weights: Mapping[str, HostWeight], storage: Format) -> dict[str, HostWeight]:
    """Return the weights in the formats that `clover-rt quantize` gives them."""
    out = {}
    for name, weight in weights.items():
        last = name.rsplit(".", 1)[-1]
        kind = weight.format
        if last in MATRICES and storage.is_quantised:
            kind = Format.Q8 if last in FINE else storage
        group = GROUPS.get(kind, 0)
        out[name] = zeros_weight(name, kind, group, weight.shape)
    return out


def release_plan(
    config: ModelConfig, weights: Mapping[str, HostWeight], precision: Precision, arch: str
) -> Plan:
    """Return the plan of the release as a card of this arch would get it."""
    capacity = fit.capacity_for(config, SLOTS, CONTEXT)
    graph = build_graph(config, weights, capacity)
    device = Recorder(arch)
    return bind(graph, device, None, layout=capacity.layout, context=CONTEXT, precision=precision)


def usual(plan: Plan) -> list[Launch]:
    """Return the programs of a committed token and of a block of 32 rows."""
    return taken(plan, ((TableClass.COMMIT, 1, 1), (TableClass.PREVIEW, 32, 1)))


def every(plan: Plan) -> list[Launch]:
    """Return the programs of all table classes, row buckets and numbers of candidates."""
    buckets = plan.placement.buckets
    keys = ((c, rows, top) for c in buckets for rows in buckets[c] for top in TOPS)
    advances = bind_program(plan, plan.graph.advances, TableClass.COMMIT, 1, 1)
    return [*taken(plan, keys), *programs(action.step for action in advances.actions)]


def taken(plan: Plan, keys: Iterable[tuple[TableClass, int, int]]) -> list[Launch]:
    """Return one launch of each program that passes of these classes, buckets and tops take."""
    nodes = first_of_each(plan)
    bound = (bind_program(plan, nodes, *key) for key in keys)
    return programs(action.step for program in bound for action in program.actions)


def first_of_each(plan: Plan) -> list[Node]:
    """Return the nodes without the layers that are like an earlier one: they take its programs."""
    values, seen, out = plan.graph.values, set(), []
    names: dict[str, str] = {}
    for node in plan.graph.nodes:
        operands = {o: names.get(v, v) for o, v in node.operands.items()}
        kind = [node.op, *node.axes.items(), *node.attrs.items()]
        for operand, value in ((o, values[v]) for o, v in operands.items()):
            stored = value.weight and (value.weight.format, value.weight.group)
            kind.append((operand, value.dtype, value.shape, stored))
        if tuple(kind) in seen:
            names[node.operands["y"]] = operands["h"]
        else:
            seen.add(tuple(kind))
            out.append(replace(node, operands=operands))
    return out


def key_of(launch: Launch) -> str:
    """Return what names a program in the table: a digest of all that its compiler sees."""
    return hashlib.sha256(name_of(launch).encode()).hexdigest()[:16]


def entry_of(found: Compiled) -> dict[str, Any]:
    return {"kernel": found.name, **{name: getattr(found, name) for name in NUMBERS}}


def read(version: str = triton.__version__) -> dict[str, dict[str, Any]]:
    """Return the table of a version of Triton: numbers by target and program; empty without one."""
    path = table_path(version)
    table: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return table


def write(table: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the table with one line a program; a reader finds the old one or the new one."""
    targets = []
    for target, entries in sorted(table.items()):
        ordered = sorted(entries.items(), key=lambda item: (item[1]["kernel"], item[0]))
        lines = ",\n".join(f'"{key}": {json.dumps(entry)}' for key, entry in ordered)
        targets.append(f'"{target}": {{\n{lines}\n}}')
    path = table_path(triton.__version__)
    part = path.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(targets) + "\n}\n")
    os.replace(part, path)


def table_path(version: str) -> Path:
    return FOLDER / f"ahead-{version}.json"


class Plans:
    """Plans of the release, made once for all targets of equal tiles."""

    def __init__(self, folder: Path) -> None:
        self.config, self.weights = release_weights(folder)
        self._made: dict[tuple[Format, Precision, str], Plan] = {}

    def of(self, storage: Format, precision: Precision, target: str) -> Plan:
        key = (storage, precision, repr(Tuning.of(target).entries))
        if key not in self._made:
            weights = stored_as(self.weights, storage)
            self._made[key] = release_plan(self.config, weights, precision, target)
        return self._made[key]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--weights", nargs="+", choices=FORMATS, default=list(FORMATS))
    names = [p.value for p in Precision]
    parser.add_argument("--precision", nargs="+", choices=names, default=names)
    parser.add_argument("--usual", action="store_true", help="a token and a block only")
    parser.add_argument("--list", action="store_true", help="count and compile nothing")
    args = parser.parse_args()
    table, planned = read(), {target: set[str]() for target in TARGETS}
    with tempfile.TemporaryDirectory() as folder:
        plans = Plans(Path(folder))
        for storage, precision, target in product(args.weights, args.precision, args.targets):
            plan = plans.of(FORMATS[storage], Precision(precision), target)
            entries = table.setdefault(target, {})
            found = {key_of(n): n for n in (usual(plan) if args.usual else every(plan))}
            planned[target].update(found)
            missing = {key: n for key, n in found.items() if key not in entries}
            told = f"{target} {storage} {precision}: {len(found)} programs, {len(missing)} missing"
            print(told, flush=True)
            if args.list:
                continue
            for key, launch in missing.items():
                entries[key] = entry_of(compiled(launch, target))
                write(table)
    if args == parser.parse_args([]):
        write({t: {k: table[t][k] for k in kept} for t, kept in planned.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
