"""What a plan says of itself: choices for --explain, time and bytes by op for --profile."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from clover_rt.ops import OPS
from clover_rt.plan.border import raise_step
from clover_rt.plan.placement import Place

if TYPE_CHECKING:
    from clover_rt.plan.plan import Plan
    from clover_rt.plan.program import Action, Program


def explain(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data: devices, precision, and each op's place, kernel and reason."""
    groups: Counter[tuple[str, str, str, str, str]] = Counter()
    for c in plan.choices:
        groups[c.op, c.how, c.place.value, c.numerics.value, c.reason] += 1
    ops = [
        dict(op=op, nodes=n, how=how, place=place, numerics=numerics, reason=reason)
        for (op, how, place, numerics, reason), n in groups.items()
    ]
    native = sum(c.how == "native" for c in plan.choices)
    return {
        "device": plan.devices[Place.DEVICE].name,
        "host": plan.devices[Place.HOST].name if Place.HOST in plan.devices else None,
        "precision": plan.precision.value,
        "row_invariant": plan.row_invariant,
        "native": native,
        "nodes": len(plan.choices),
        "composed": sorted({OPS[n.op].name for n in plan.graph.nodes if _composed(plan, n.name)}),
        "classes": {c.value: b for c, b in plan.placement.buckets.items()},
        "ops": ops,
    }


def explain_text(plan: Plan) -> str:
    """Return `explain` as lines for a reader."""
    report = explain(plan)
    lines = [
        f"device {report['device']}, precision {report['precision']}, "
        f"{report['native']} of {report['nodes']} steps native"
        + (", row-invariant" if report["row_invariant"] else ""),
        f"composed: {', '.join(report['composed']) or 'nothing'}",
    ]
    for table, buckets in report["classes"].items():
        taken = ", ".join(map(str, buckets)) or "refused: two passes instead"
        lines.append(f"class {table}: rows {taken}")
    for op in report["ops"]:
        reason = f"  {op['reason']}" if op["reason"] else ""
        lines.append(f"{op['nodes']:5d} x {op['op']:16s} {op['how']:9s} {op['numerics']}{reason}")
    return "\n".join(lines)


def _composed(plan: Plan, name: str) -> bool:
    return name in plan.placement.expanded


@dataclass
class OpTotal:
    """What one op took over all profiled passes."""

    seconds: float = 0.0
    launches: int = 0
    bytes: float = 0.0
    flops: float = 0.0


@dataclass
class Profile:
    """Times passes step by step; a pass is slower under it than without.

    distinct  experts that the last pass used, by layer
    """

    ops: dict[str, OpTotal] = field(default_factory=dict)
    passes: int = 0
    distinct: list[int] = field(default_factory=list)

    def run(self, program: Program, plan: Plan) -> None:
        """Run a program's actions one by one, waiting for each."""
        self.passes += 1
        self.distinct = []
        params = plan._staging
        live = {
            "T": params.rows,
            "W": params.wanted_rows,
            "L": max((s.position + s.rows for s in params.segments), default=0),
            "advances": len(params.advances),
            "advance_rows": sum(n for _, n in params.advances),
        }
        for action in program.actions:
            device = plan.devices[action.place]
            start = time.perf_counter()
            try:
                action.step()
                # an error that a step leaves behind comes up here, at the step that caused it
                device.synchronize()
            except (Exception, SystemExit) as error:
                raise_step(list(plan.devices.values()), [action], error)
            seconds = time.perf_counter() - start
            total = self.ops.setdefault(action.node.op if action.node else "move", OpTotal())
            total.seconds += seconds
            total.launches += 1
            self._add_work(total, action, plan, live)

    def _add_work(self, total: OpTotal, action: Action, plan: Plan, live: dict[str, int]) -> None:
        if action.node is None or action.sig is None:
            return
        if action.node.op == "group_rows":
            at = action.results[1]
            offsets = np.empty(at.shape, np.int32)
            plan.devices[action.place].download(at.buffer, at.offset, offsets)
            live["distinct"] = int((np.diff(offsets) > 0).sum())
            self.distinct.append(live["distinct"])
        here = dict(live)
        if action.node.op == "expert_gemm" and "order" in action.node.operands:
            here["experts"] = live["distinct"]
        work = OPS[action.node.op].work(action.sig, here)
        total.bytes += work.bytes
        total.flops += work.flops

    def report(self) -> list[dict[str, Any]]:
        """Return each op's totals, slowest first."""
        rows = sorted(self.ops.items(), key=lambda item: -item[1].seconds)
        return [
            dict(
                op=op,
                ms=1e3 * t.seconds,
                launches=t.launches,
                megabytes=t.bytes / 1e6,
                gigabytes_per_s=t.bytes / t.seconds / 1e9 if t.seconds else 0.0,
                gigaflops_per_s=t.flops / t.seconds / 1e9 if t.seconds else 0.0,
            )
            for op, t in rows
        ]

    def text(self) -> str:
        lines = [f"{'op':16s} {'ms':>9s} {'launches':>8s} {'MB':>9s} {'GB/s':>7s} {'Gflop/s':>8s}"]
        for r in self.report():
            lines.append(
                f"{r['op']:16s} {r['ms']:9.2f} {r['launches']:8d} {r['megabytes']:9.1f} "
                f"{r['gigabytes_per_s']:7.2f} {r['gigaflops_per_s']:8.1f}"
            )
        return "\n".join(lines)
