"""Order: which dispatches have to wait for earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from clover_rt_vulkan.driver import Binding, Dispatch


def stages(dispatches: Sequence[Dispatch]) -> list[int]:
    """Return the indices of the dispatches that must wait for all before them, without the first.

    One must wait where it reads what was written since the last wait, or writes what was read or
    written since then. Buffers never share memory, so bytes of two buffers never meet.
    """
    out: list[int] = []
    since: dict[int, list[Binding]] = {}
    for i, dispatch in enumerate(dispatches):
        if any(_meets(b, since.get(id(b.memory), ())) for b in dispatch.bindings):
            out.append(i)
            since = {}
        for b in dispatch.bindings:
            since.setdefault(id(b.memory), []).append(b)
    return out


def _meets(binding: Binding, earlier: Iterable[Binding]) -> bool:
    end = binding.offset + binding.nbytes
    return any(
        (binding.is_written or e.is_written)
        and binding.offset < e.offset + e.nbytes
        and e.offset < end
        for e in earlier
    )


def first_cuts(layers: Sequence[int], least: int) -> list[int]:
    """Return the first index of each run of whole layers with at least so many dispatches."""
    out = [0]
    for start in layers:
        if start - out[-1] >= least:
            out.append(start)
    return out


def cuts(costs: Sequence[float], layers: Sequence[int], budget: float) -> list[int]:
    """Return the first index of each submission of a pass; 0 is the first.

    costs   of each dispatch
    layers  index of the first dispatch of each layer; 0 is the first
    Submissions are whole layers of about equal cost. Only a layer that is over the budget by itself
    is cut inside, since a card would be reset in it.
    """
    ends = [*layers[1:], len(costs)]
    each = [sum(costs[lo:hi]) for lo, hi in zip(layers, ends, strict=True)]
    parts = max(1, ceil(sum(costs) / budget))
    out = {layers[i] for i in even_cuts(each, min(parts, len(layers)))}
    for lo, hi, cost in zip(layers, ends, each, strict=True):
        if cost > budget:
            out |= {lo + i for i in even_cuts(costs[lo:hi], min(ceil(cost / budget), hi - lo))}
    return sorted(out)


def even_cuts(costs: Sequence[float], parts: int) -> list[int]:
    """Return the first index of each of `parts` runs of about equal cost; 0 is the first."""
    share, total, out = sum(costs) / parts, 0.0, [0]
    for i, cost in enumerate(costs):
        if total >= share * len(out) and len(out) < parts and i > out[-1]:
            out.append(i)
        total += cost
    return out
