"""Does it fit: sizes, budgets and the largest context, as one dict of plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clover_rt.backend import Device
from clover_rt.fit.memory import Setting, Taken, taken
from clover_rt.fit.weights import SCHEMES, is_quantised, shares, stored_as
from clover_rt.model.config import ModelConfig
from clover_rt.plan import Place
from clover_rt.spec import PAGE_ROWS, HostWeight

SCHEMA = 1
GB = 1_000_000_000
CARDS = (16 * GB, 24 * GB, 32 * GB)
RESERVE_SHARE = 0.05
RESERVE_BYTES = 256_000_000


def report(
    config: ModelConfig,
    weights: Mapping[str, HostWeight],
    device: Device,
    host: Device,
    setting: Setting,
    context: int,
) -> dict[str, Any]:
    """Return what a load of `context` tokens takes, and what fits where; all sizes in bytes.

    device   what the model is to run on; host is the cpu behind, the same object for the cpu
    Raises Unsupported where neither device takes an operation.
    """
    at = taken(config, weights, device, host, setting, context)
    curve = _Curve(
        taken(config, weights, device, host, setting, PAGE_ROWS)[Place.DEVICE],
        taken(config, weights, device, host, setting, config.context)[Place.DEVICE],
        config.context,
    )
    rows = shares(weights)
    # what another format saves on disk, it saves where the weights are held
    file_bytes = sum(row.bytes for row in rows)
    memory = device.memory()
    budgets = [_budget(f"{size // GB} GB", size, curve, at[Place.DEVICE]) for size in CARDS]
    if memory.free:
        budgets.append(_budget("this machine", memory.free, curve, at[Place.DEVICE]))
    storage = []
    for scheme in () if is_quantised(rows) else SCHEMES:
        size = stored_as(weights, scheme)
        saved = file_bytes - size
        storage.append(
            {
                "name": scheme.name,
                "weights": size,
                "largest_context": {
                    b["name"]: curve.largest(b["bytes"] - b["reserve"], saved) for b in budgets
                },
            }
        )
    return {
        "schema": SCHEMA,
        "model": {
            "type": config.model_type,
            "layers": len(config.layer_types),
            "parameters": sum(row.parameters for row in rows),
            "context": config.context,
        },
        "precision": setting.precision.value,
        "context": context,
        "slots": setting.slots,
        "prefill_rows": setting.prefill_rows,
        "weights": [
            {
                "class": row.name,
                "format": row.format.value,
                "group": row.group,
                "parameters": row.parameters,
                "bytes": row.bytes,
            }
            for row in rows
        ],
        "devices": [_device(place, at[place], device, host) for place in at],
        "budgets": budgets,
        "storage": storage,
        "kv_bytes_per_token": curve.per_page // PAGE_ROWS,
    }


class _Curve:
    """Bytes on the device by context: what grows does so by the page, the rest is its largest."""

    def __init__(self, small: Taken, large: Taken, context: int) -> None:
        pages = max(-(-context // PAGE_ROWS) - 1, 1)
        grown = large.kv + large.tables - small.kv - small.tables
        self.per_page = -(-grown // pages)
        # scratch grows in steps with the context; its largest serves for every context
        self.fixed = large.total - large.kv - large.tables + small.kv + small.tables
        self.context = context

    def largest(self, budget: int, saved: int = 0) -> int:
        """Return the largest context in a budget of bytes, 0 where not even a page fits."""
        room = budget - (self.fixed - saved)
        if room < 0:
            return 0
        if self.per_page == 0:
            return self.context
        return min(self.context, (1 + room // self.per_page) * PAGE_ROWS)


def _budget(name: str, size: int, curve: _Curve, at: Taken) -> dict[str, Any]:
    reserve = max(int(size * RESERVE_SHARE), RESERVE_BYTES)
    usable = size - reserve
    return {
        "name": name,
        "bytes": size,
        "reserve": reserve,
        "fits": at.total <= usable,
        "short": max(at.total - usable, 0),
        "largest_context": curve.largest(usable),
    }


def _device(place: Place, at: Taken, device: Device, host: Device) -> dict[str, Any]:
    here = device if place is Place.DEVICE else host
    memory = here.memory()
    limit = here.max_binding_bytes
    return {
        "place": place.value,
        "name": here.name,
        "prepared": at.prepared,
        "mapped": at.mapped,
        "kv": at.kv,
        "recurrent": at.recurrent,
        "tables": at.tables,
        "step": at.step,
        "workspace": at.workspace,
        "scratch": at.scratch,
        "total": at.total,
        "largest_buffer": at.largest,
        "largest_binding": limit,
        "is_over_binding": bool(limit) and at.largest > limit,
        "memory_total": memory.total,
        "memory_free": memory.free,
    }
