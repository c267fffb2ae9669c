"""The last line of a run: what ran where, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(stats: Mapping[str, Any], finish_reason: str) -> str:
    """Return mode, device, precision, counts, speed and what ran on the host, as one line.

    Parts that a mode lacks are left out.
    """
    parts = ["cancelled"] if finish_reason == "cancelled" else []
    parts += [str(stats[key]) for key in ("mode", "device", "precision")]
    tokens, passes, blocks = stats["tokens"], stats["passes"], stats["blocks"]
    parts.append(f"{tokens} tokens")
    if passes:
        parts.append(f"{stats['tokens_per_pass']:.2f} tokens a pass")
    if blocks:
        parts.append(f"{passes / blocks:.2f} passes a block")
    if passes:
        parts.append(f"{stats['ms_per_pass']:.2f} ms a pass")
    if stats["decode_ms"]:
        parts.append(f"{1000 * tokens / stats['decode_ms']:.1f} tokens/s")
    parts.append(f"native ops {stats['native_ops']} of {stats['ops']}")
    parts += [fallback(op) for op in stats["host_ops"]]
    return " · ".join(parts)


def fallback(op: Mapping[str, Any]) -> str:
    """Return what ran elsewhere than on the device, and why."""
    where = {"host": "on the host", "reference": "by the reference"}[op["how"]]
    return f"{where}: {op['steps']} x {op['op']} ({op['reason']})"
