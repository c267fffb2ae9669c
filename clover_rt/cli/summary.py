"""The last line of a run: what ran where, and how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WHERE = {"host": "on the host", "reference": "by the reference"}
MOST_GROUPS = 2
MOST_NAMES = 3
MOST_LETTERS = 80


def summary(
    stats: Mapping[str, Any], finish_reason: str, tally: Mapping[str, int] | None = None
) -> str:
    """Return mode, device, precision, counts, speed, threads, what ran on the host, as one line.

    tally  what the device counted, by name
    Parts that a mode lacks are left out.
    """
    parts = ["cancelled"] if finish_reason == "cancelled" else []
    parts += [str(stats[key]) for key in ("mode", "device", "precision")]
    tokens, passes, blocks = stats["tokens"], stats["passes"], stats["blocks"]
    parts.append(f"{tokens} token{'' if tokens == 1 else 's'}")
    if passes:
        parts.append(f"{stats['tokens_per_pass']:.2f} tokens a pass")
    if blocks:
        parts.append(f"{passes / blocks:.2f} passes a block")
    if passes:
        parts.append(f"{stats['ms_per_pass']:.2f} ms a pass")
    if stats["tokens_per_s"]:
        parts.append(f"{stats['tokens_per_s']:.1f} tokens/s")
    if threads := stats.get("threads"):
        parts.append(f"{threads} thread{'' if threads == 1 else 's'}")
    parts += [f"{count} {name}" for name, count in (tally or {}).items()]
    parts.append(f"native ops {stats['native_ops']} of {stats['ops']}")
    return " · ".join(parts + fallbacks(stats["host_ops"]))


def fallbacks(ops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what ran elsewhere than on the device and why: a few parts, however much it is."""
    groups: dict[tuple[str, str], list[str]] = {}
    for op in ops:
        groups.setdefault((op["how"], op["reason"]), []).append(op["op"])
    parts = []
    for (how, reason), names in list(groups.items())[:MOST_GROUPS]:
        shown = ", ".join(names[:MOST_NAMES])
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        parts.append(f"{WHERE[how]}: {shown}{more} ({shortened(reason)})")
    left_out = len(groups) > MOST_GROUPS or any(
        len(names) > MOST_NAMES or shortened(reason) != reason
        for (_, reason), names in groups.items()
    )
    return parts + (["run --explain tells all"] if left_out else [])


def shortened(reason: str) -> str:
    """Return a reason that fits into a line with others."""
    return reason if len(reason) <= MOST_LETTERS else f"{reason[: MOST_LETTERS - 3].rstrip()}..."
