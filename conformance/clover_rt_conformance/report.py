"""What a run found: counts, one line a failure with the command that reruns it, JSON, JUnit."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any
from xml.etree import ElementTree

from clover_rt.backend import API
from clover_rt.ops import OPS
from clover_rt.plugins import own_variables
from clover_rt.spec import Tier
from clover_rt_conformance.trial import Outcome, Result

SCHEMA = 1


@dataclass
class Report:
    """The results of a run.

    backend, device, environment  as asked: every reproducing line carries them
    about     device, plugin and machine, as the worker says
    cases     hash and number of the trials that were chosen
    required  ops that must not be declined
    """

    backend: str
    device: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    cases: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    seed: int = 0
    results: list[Result] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Return how many trials had each outcome, and how many there were."""
        found = Counter(r.outcome for r in self.results)
        return {"total": len(self.results), **{o.value: found[o] for o in Outcome}}

    @property
    def failures(self) -> list[Result]:
        """Return what is wrong, the smallest case of each op first; declined where required."""
        wrong = [r for r in self.results if r.outcome.is_wrong or self.is_refused(r)]
        order = list(dict.fromkeys(r.op for r in self.results))
        return sorted(wrong, key=lambda r: (order.index(r.op), r.size))

    def is_refused(self, r: Result) -> bool:
        """Is it declined, though its op is required?"""
        return r.outcome is Outcome.DECLINED and r.op in self.required

    @property
    def problems(self) -> list[str]:
        """Return what is wrong with the run as a whole."""
        tried = [r for r in self.results if r.outcome.is_right or r.outcome.is_wrong]
        if not self.results:
            return ["no case was chosen: zero cases are a failure"]
        if not tried:
            return ["no case was run: all were declined or not run, which is a failure"]
        ran = {r.op for r in tried}
        return [f"required op {op} was not run" for op in self.required if op not in ran]

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment that was asked for, and what is set here of clover-rt's own."""
        return own_variables() | self.environment

    @property
    def passed(self) -> bool:
        return not self.failures and not self.problems

    def rerun(self, r: Result) -> str:
        """Return the command that runs one trial again."""
        words = ["clover-rt", "conformance", "--backend", self.backend]
        if self.device is not None:
            words += ["--device", self.device]
        for name, value in self.variables.items():
            words += ["--env", f"{name}={value}"]
        words += ["--case", r.id, "--precision", r.precision]
        if self.seed:
            words += ["--seed", str(self.seed)]
        return shlex.join(words)

    def ops(self) -> dict[str, dict[str, Any]]:
        """Return for each op its counts, and its largest error beside the tolerance."""
        out: dict[str, dict[str, Any]] = {}
        for op in dict.fromkeys(r.op for r in self.results):
            own = [r for r in self.results if r.op == op]
            found = Counter(r.outcome.value for r in own)
            out[op] = {"counts": dict(found), "largest_error": largest(own)}
        return out

    def tiers(self) -> dict[str, dict[str, int]]:
        """Return how many ops of each tier are right in every case, native or composed."""
        out = {}
        for name, tier in (("tier 0: primitives", "primitive"), ("tier 1: layer ops", "layer")):
            names = [n for n, s in OPS.items() if s.tier is Tier(tier)]
            out[name] = {"ops": len(names), "native": 0, "composed": 0}
            for op in names:
                seen = {r.outcome for r in self.results if r.op == op}
                if Outcome.NATIVE in seen and seen <= {Outcome.NATIVE, Outcome.NOT_RUN}:
                    out[name]["native"] += 1
                elif seen and all(o.is_right or o is Outcome.NOT_RUN for o in seen):
                    out[name]["composed"] += 1
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data; two of them can be compared line by line."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "counts": self.counts,
            "backend": self.backend,
            "asked": {"device": self.device, "environment": self.variables, "seed": self.seed},
            **self.about,
            "core": {"version": metadata.version("clover-rt"), "api": list(API)},
            "cases": self.cases,
            "required": list(self.required),
            "problems": self.problems,
            "tiers": self.tiers(),
            "ops": self.ops(),
            "failures": [self._about(r) for r in self.failures],
            "declined": self._listed(Outcome.DECLINED),
            "not_run": self._listed(Outcome.NOT_RUN),
            "notes": {f"{r.id} [{r.precision}]": list(r.notes) for r in self.results if r.notes},
            "trials": {f"{r.id} [{r.precision}]": r.outcome.value for r in self.results},
        }

    def junit(self) -> str:
        """Return the results as JUnit XML: one test a trial, declined and not run ones skipped."""
        counts = self.counts
        suite = ElementTree.Element(
            "testsuite",
            name=f"clover-rt conformance {self.backend}",
            tests=str(counts["total"]),
            failures=str(len(self.failures) - counts["crashed"]),
            errors=str(counts["crashed"]),
            skipped=str(counts["declined"] + counts["not_run"]),
        )
        for r in self.results:
            name = f"{r.id} [{r.precision}]"
            seconds = f"{r.seconds:.3f}"
            at = {"classname": r.op, "name": name, "time": seconds}
            case = ElementTree.SubElement(suite, "testcase", at)
            text = "\n".join([*r.detail, f"rerun: {self.rerun(r)}"])
            if r.outcome is Outcome.CRASHED:
                ElementTree.SubElement(case, "error", message=r.named).text = text
            elif r.outcome is Outcome.FAILED or self.is_refused(r):
                ElementTree.SubElement(case, "failure", message=r.named).text = text
            elif not r.outcome.is_right:
                ElementTree.SubElement(case, "skipped", message="; ".join(r.detail))
        encoded: bytes = ElementTree.tostring(suite, "utf-8", xml_declaration=True)
        return encoded.decode()

    def _about(self, r: Result) -> dict[str, Any]:
        return {
            "id": r.id,
            "op": r.op,
            "precision": r.precision,
            "classes": list(r.classes),
            "outcome": r.outcome.value,
            "detail": list(r.detail),
            "rerun": self.rerun(r),
        }

    def _listed(self, outcome: Outcome) -> dict[str, list[str]]:
        """Return reason -> the trials that it kept from running."""
        out: dict[str, list[str]] = {}
        for r in self.results:
            if r.outcome is outcome:
                out.setdefault("; ".join(r.detail), []).append(f"{r.id} [{r.precision}]")
        return out


def largest(results: Iterable[Result]) -> dict[str, Any] | None:
    """Return the measure that used most of its tolerance, with its case; None without any."""
    found = [(m["share"], r, m) for r in results for m in r.measures]
    if not found:
        return None
    _, r, m = max(found, key=lambda f: f[0])
    return {"case": r.id, "precision": r.precision, **m}


def text(report: Report, limit: int = 20) -> str:
    """Return the report for people; at most `limit` failures are told."""
    counts = report.counts
    lines = _heading(report)
    lines += ["", *_table(report), ""]
    for told, outcome in (("declined", Outcome.DECLINED), ("not run", Outcome.NOT_RUN)):
        for reason, ids in report._listed(outcome).items():
            lines.append(f"{told}: {len(ids)} x {reason} (such as {ids[0]})")
    failures: Sequence[Result] = report.failures
    for r in failures[:limit]:
        lines += ["", failure(report, r)]
    if len(failures) > limit:
        lines.append(f"\n... and {len(failures) - limit} more failures; --json has them all")
    lines += [f"\n{problem}" for problem in report.problems]
    for name, tier in report.tiers().items():
        lines.append(
            f"{name}: {tier['native']} native, {tier['composed']} composed of {tier['ops']}"
        )
    numbers = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n)
    lines.append(f"{'passed' if report.passed else 'FAILED'}: {numbers}")
    return "\n".join(lines)


def failure(report: Report, r: Result) -> str:
    """Return one failure: its class, what was wrong, and the line that reruns it."""
    head = f"{r.outcome.value}: {r.id} [{r.precision}]"
    if r.named:
        head += f" ({r.named})"
    return "\n".join([head, *(f"  {line}" for line in r.detail), f"  rerun: {report.rerun(r)}"])


def _heading(report: Report) -> list[str]:
    device, plugin = report.about.get("device", {}), report.about.get("plugin", {})
    machine = report.about.get("machine", {})
    notes = ", ".join(f"{k} {v}" for k, v in device.get("notes", {}).items())
    name = device.get("name", "")
    return [
        f"backend {report.backend} {plugin.get('version', '')} (API {_dotted(plugin.get('api'))}), "
        f"clover-rt {metadata.version('clover-rt')} (API {_dotted(API)})",
        f"device {device.get('id', '')}: {name}{f' ({notes})' if notes else ''}",
        f"machine {machine.get('system', '')} {machine.get('architecture', '')}, "
        f"{machine.get('cores', '')} cores, Python {machine.get('python', '')}",
        f"cases {report.cases.get('hash', '')} ({report.cases.get('count', 0)}, "
        f"lane {report.cases.get('lane', '')})",
    ]


def _dotted(version: Iterable[int] | None) -> str:
    return ".".join(str(n) for n in version or ())


def _table(report: Report) -> list[str]:
    """Return one line an op: outcomes, and the largest error beside its bound."""
    lines = [f"{'op':16} {'right':>6} {'wrong':>6} {'other':>6}  largest error against its bound"]
    for op, facts in report.ops().items():
        found = facts["counts"]
        right = sum(found.get(o.value, 0) for o in Outcome if o.is_right)
        wrong = sum(found.get(o.value, 0) for o in Outcome if o.is_wrong)
        rest = sum(found.values()) - right - wrong
        line = f"{op:16} {right:6} {wrong:6} {rest:6}  "
        m = facts["largest_error"]
        if m is not None:
            line += f"{m['error']:.1e} of {m['bound']:.1e} {m['numerics']}: {m['tolerance']['why']}"
        lines.append(line.rstrip())
    return lines
