"""Whole models in any precision: layer by layer, and teacher-forced against the golden logits.

No bound of a row's logits holds in 16 bits, since one expert more or less exceeds any rounding.
So each layer op is fed the float64 reference's input and state and judged by its own tolerance,
and a whole run by its mean deviation: at most twice that of the float64 decomposition whose edges
are rounded to the same numerics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from clover_rt.graph import flatten
from clover_rt.ops import OPS
from clover_rt.ops.derived import MARGIN, RUNS, rounding, run_nodes
from clover_rt.plan.case_run import typed
from clover_rt.spec import (
    Case,
    Kind,
    Mismatch,
    Node,
    Numerics,
    Pass,
    Precision,
    Role,
    TableClass,
    Tolerance,
    Weight,
)
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.bound import COARSEST, Array, Bound
from clover_rt_conformance.harness import Verdict
from clover_rt_conformance.judge import Expected, Measure, at_least_a_step, judge, measures
from clover_rt_conformance.models.binding import (
    LAYOUT,
    all_logits,
    commit,
    golden_graph,
    how,
    one_segment,
    plan_of,
)
from clover_rt_conformance.models.exact import TINY
from clover_rt_conformance.models.golden import PROMPTS, arrays, prompt_ids, runs
from clover_rt_conformance.models.walk import Walk
from clover_rt_conformance.trial import BOTH, Trial

KINDS = {"commit": Kind.COMMIT, "preview": Kind.PREVIEW, "verify": Kind.VERIFY}
FAST = BOTH[1:]
TWICE = 2.0


def rounded_trials() -> Iterator[Trial]:
    """Yield each layer op on the golden model's own rows, and the teacher-forced runs."""
    for node in golden_graph(TINY).nodes:
        if OPS[node.op].decompose is None:
            continue
        for kind in KINDS:
            run = partial(_layer, node.name, kind)
            classes = ("K-35",) if kind == "preview" else ("K-24",)
            yield Trial(f"model/{TINY}/{kind}/{node.name}", "model", classes, run)
    for prompt in PROMPTS:
        forced = partial(_forced, prompt)
        yield Trial(f"model/{TINY}/teacher-forced/{prompt}", "model", (), forced, precisions=FAST)


def _work(kind: str) -> tuple[Pass, Pass]:
    """Return the pass that makes the state and the one that is judged."""
    ids = prompt_ids(TINY, "short")
    first = one_segment(Kind.COMMIT, 1, ids, 0)
    block = {
        "commit": prompt_ids(TINY, "long")[:24],
        "preview": tuple(arrays(TINY)["short.preview_half.block"].tolist()),
        "verify": tuple(runs(TINY)["rounds"]["short/release/exact"]["rounds"][0]["candidates"]),
    }[kind]
    return first, one_segment(KINDS[kind], 1, block, len(ids))


class _Inputs:
    """What every layer op of a pass saw in the float64 walk."""

    def __init__(self, kind: str) -> None:
        graph = golden_graph(TINY)
        walk = Walk(graph, LAYOUT)
        first, work = _work(kind)
        walk.run(first)
        states = {n: v.copy() for n, v in walk.values.items() if isinstance(v, np.ndarray)}
        values = walk.run(work)
        self.table = work.table
        self.rows = len(work.tokens)
        self.nodes = {n.name: n for n in graph.nodes}
        # states as they were before the pass, edges as they are after it
        changed = {n for n, v in graph.values.items() if v.kind.value == "state"}
        self.values = {n: states[n] if n in changed else v for n, v in values.items()}


def _layer(name: str, kind: str, bench: Bench, precision: Precision, seed: int) -> Verdict:
    seen: _Inputs = bench.keep(("inputs", kind), lambda: _Inputs(kind))
    node = seen.nodes[name]
    spec, device = OPS[node.op], bench.device
    values = {o: seen.values[v] for o, v in node.operands.items() if o not in _outputs(node)}
    if node.op == "pick":
        node = replace(node, axes={**node.axes, "top": 64})
    inputs = typed(spec, values, device.dtypes(precision))
    axes = {**node.axes, "T": seen.rows, "W": seen.rows}
    case = Case(f"{name}/{kind}", node.op, axes, lambda _: inputs, node.attrs, seen.table)
    with Bound(device, spec, case, precision, inputs) as bound:
        after, problems, numerics = bound.run(), bound.problems(), bound.numerics
        before, done = bound.before, bound.how
    want, tolerance, fair = _rounded(node, seen.table, inputs, numerics)
    told: tuple[str, ...] = ()
    if not fair.all():
        # what a near-tie of the router decides is judged on router_topk itself
        told = (f"{int((~fair).sum())} of {len(fair)} rows left out: their routing is a near-tie",)
        row = np.where(fair[:, None], want.outputs["y"], after["y"][: seen.rows])
        want = Expected({"y": row}, want.written)
    problems += judge(spec, case, tolerance, before, after, want)
    return Verdict(done, problems, measures(tolerance, numerics, after, want), told)


def _outputs(node: Node) -> set[str]:
    return {o.name for o in OPS[node.op].operands if o.role is Role.OUTPUT}


def _rounded(
    node: Node, table: TableClass, inputs: dict[str, Any], numerics: Numerics
) -> tuple[Expected, Tolerance, Array]:
    """Return the float64 result, the derived tolerance, and the rows whose routing is not near.

    A row is fair if no rounded run chose other experts for it.
    """
    spec = OPS[node.op]
    right = _run(node, table, inputs, None)
    outputs = {o.name: right[o.name] for o in spec.outputs}
    want = Expected(outputs, {n: right[n] for n in spec.writes})
    if node.op in ("embed", "pick"):
        return want, spec.tolerance[numerics], np.ones(1, bool)
    routes = f"{node.name}/ids"
    fair = np.ones(len(right["y"]), bool)
    rounded = []
    for i in range(RUNS):
        got = _run(node, table, inputs, rounding(numerics, np.random.default_rng(i)))
        rounded.append(got)
        if routes in right:
            fair &= (got[routes] == right[routes]).all(axis=1)
    worst = 0.0
    for got in rounded:
        for name in (*outputs, *spec.writes):
            a, b = (np.asarray(v[name], np.float64) for v in (got, right))
            if name in outputs:
                a, b = a[fair], b[fair]
            scale = np.abs(b).max(initial=0.0)
            if scale:
                worst = max(worst, float(np.abs(a - b).max() / scale))
    why = f"{MARGIN:g} x {worst:.2e}, the largest of {RUNS} runs rounded to {numerics.value}"
    derived = Tolerance(0.0, MARGIN * worst, why)
    return want, at_least_a_step(spec, inputs, derived), fair


def _run(node: Node, table: TableClass, inputs: dict[str, Any], rounds: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            value = value.astype(np.float64) if value.dtype.kind == "f" else value.copy()
        values[name] = value
    named = {o: o for o in node.operands}
    same = replace(node, operands=named)
    with np.errstate(all="ignore"):
        run_nodes(flatten(same, table), values, OPS, rounds)
    return values


def _forced(prompt: str, bench: Bench, precision: Precision, seed: int) -> Verdict:
    """Feed the golden ids and blocks; judge the mean deviation of the logits."""
    plan = plan_of(bench, TINY, precision)
    numerics = max((c.numerics for c in plan.choices), key=COARSEST.index)
    kv = bench.device.dtypes(precision)[1]
    round_edge = rounding(numerics, np.random.default_rng(seed))
    walk = Walk(golden_graph(TINY), LAYOUT, kv, round_edge)
    ids, want = prompt_ids(TINY, prompt), arrays(TINY)
    pairs = {"commit": (one_segment(Kind.COMMIT, 1, ids, 0), f"{prompt}.causal_logits")}
    for preview in ("preview_masks", "preview_half", "preview_width8"):
        block = want[f"{prompt}.{preview}.block"].tolist()
        work = one_segment(Kind.PREVIEW, 1, block, len(ids))
        pairs[preview] = (work, f"{prompt}.{preview}.logits")
    problems, told, found = [], [], []
    for name, (work, key) in pairs.items():
        golden = want[key].astype(np.float64)
        if name == "commit":
            got = all_logits(plan, work)
            commit(plan, 1, ids)
        else:
            got = all_logits(plan, work)
        model = _logits(walk, work)
        mean, allowed = (float(np.abs(x - golden).mean()) for x in (got, model))
        bound = TWICE * allowed
        same = float((got.argmax(axis=1) == golden.argmax(axis=1)).mean())
        told.append(f"{name}: {same:.1%} of decisions equal, mean deviation {mean:.2e}")
        why = f"{TWICE:g} x the mean deviation of the decomposition rounded to {numerics.value}"
        tolerance = Tolerance(0.0, bound, f"{why} with a KV cache in {kv}")
        found.append((name, mean, bound, tolerance))
        if not mean <= bound:
            problems.append(Mismatch(f"mean logits of {name}", (), mean, 0.0, bound))
    seen = [Measure(f"mean {n}", m, b, m / b, numerics.value, t) for n, m, b, t in found]
    return Verdict(how(plan), problems, seen, tuple(told))


def _logits(walk: Walk, work: Pass) -> Array:
    values = walk.run(work)
    pick = next(n for n in walk.graph.nodes if n.op == "pick")
    head: Weight = values[pick.operands["head"]]
    rows = values[f"{pick.name}/norm"]
    out: Array = rows @ head.values(np.float64).T
    return out
