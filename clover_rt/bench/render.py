"""A report, or a comparison of two, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NAMES = {
    "preview": "preview, 32 rows",
    "preview_of_masks": "preview, all masks",
    "decode": "decode, 1 row",
    "commit": "commit, 32 rows",
    "commit_preview": "commit + preview",
    "prefill": "prefill",
}


def render(report: Mapping[str, Any]) -> str:
    """Return a report for a reader."""
    return "\n".join(_lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    s = report["settings"]
    yield _subject(s)
    yield f"{report['cpu']}, {report['cores']} cores, memory {_gb(report['bandwidth'])} GB/s"
    yield ""
    yield f"{'depth':>6s}  {'pass':20s} {'median':>10s} {'best':>10s} {'GB/s':>7s} {'share':>6s}  "
    for result in report["results"]:
        for kind, name in NAMES.items():
            if kind in result:
                yield f"{result['depth']:6d}  {name:20s} {_figures(result[kind])}"
    if report["skipped_depths"]:
        skipped = ", ".join(map(str, report["skipped_depths"]))
        yield f"not in the checkpoint's context of {report['checkpoint_context']}: {skipped}"
    yield ""
    yield "share: bytes that the pass must read, over its best time and the memory's bandwidth"
    yield f"loaded in {report['load_s']:.1f} s, at most {report['peak_gb']:.2f} GB resident"


def _figures(timed: Mapping[str, Any]) -> str:
    if "tokens_per_s" in timed:
        return f"{timed['tokens_per_s']:8.1f} tokens/s, {timed['tokens']} tokens"
    out = (
        f"{timed['ms_median']:7.2f} ms {timed['ms_min']:7.2f} ms {timed['gb_per_s']:7.2f} "
        f"{timed['of_bandwidth']:5.0%} "
    )
    experts = timed["distinct_experts_by_layer"]
    if experts:
        out += f" {min(experts)} to {max(experts)} experts a layer"
    return out


def _subject(settings: Mapping[str, Any]) -> str:
    """Return what was timed, with the variables that were set."""
    device = f" {settings['device']}" if settings["device"] else ""
    told = (
        f"{settings['model']} on {settings['backend']}{device}, precision {settings['precision']}"
    )
    set_to = [f"{name}={value}" for name, value in settings["variables"].items()]
    return ", ".join([told, *set_to])


def _gb(bandwidth: Mapping[str, Any]) -> str:
    return f"{bandwidth['gb_per_s']:.1f}"


def render_comparison(comparison: Mapping[str, Any]) -> str:
    """Return a comparison for a reader."""
    lines = []
    for key in ("a", "b"):
        lines.append(f"{key}: {_subject(comparison[key])}")
    lines += ["", f"{'depth':>6s}  {'pass':20s} {'a':>10s} {'b':>10s} {'b / a':>6s}"]
    lines += [
        f"{r['depth']:6d}  {NAMES[r['kind']]:20s} {r['a_ms']:7.2f} ms {r['b_ms']:7.2f} ms "
        f"{r['ratio']:6.2f}"
        for r in comparison["results"]
    ]
    return "\n".join(lines)
