"""Order: which dispatches have to wait for earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def even_cuts(costs: Sequence[float], parts: int) -> list[int]:
    """Return the first index of each of `parts` runs of about equal cost; 0 is the first."""
    share, total, out = sum(costs) / parts, 0.0, [0]
    for i, cost in enumerate(costs):
        if total >= share * len(out) and len(out) < parts and i > out[-1]:
            out.append(i)
        total += cost
    return out
