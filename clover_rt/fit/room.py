"""Is there room for a load? Asked before anything is copied to a device."""

from __future__ import annotations

import os
from collections.abc import Mapping

from clover_rt.backend import Device, Memory
from clover_rt.errors import OutOfMemory, Unsupported
from clover_rt.fit.context import kv_bytes_per_token
from clover_rt.fit.memory import Setting, Taken, capacity_for, taken
from clover_rt.fit.render import size
from clover_rt.fit.weights import QUANTISED, distinct, is_quantised, shares, stored_as
from clover_rt.model.config import ModelConfig
from clover_rt.plan import Place
from clover_rt.spec import PAGE_ROWS, HostWeight

SHARED = ("cpu", "integrated")
"""Kinds of devices whose memory is the host's: what they report is no limit of what they get."""
CLEARLY = 2
"""Where weights and cache fit this often nothing is counted, which takes as long as binding."""
FLOAT_BYTES = 4


def check_room(
    config: ModelConfig,
    weights: Mapping[str, HostWeight],
    device: Device,
    host: Device,
    setting: Setting,
    context: int,
    name: str | os.PathLike[str],
) -> None:
    """Raise OutOfMemory (CRT-3203) where weights and state alone are over the device's free memory.

    name  of the checkpoint's folder
    Devices that do not report their memory, or share the host's, are left alone.
    """
    memory = device.memory()
    if device is host or device.info is None or device.info.kind in SHARED or not memory.free:
        return
    cache = capacity_for(config, setting.slots, context).pages * PAGE_ROWS
    whole = sum(weight.nbytes for weight in distinct(weights).values())
    if CLEARLY * (whole + cache * kv_bytes_per_token(config, FLOAT_BYTES)) <= memory.free:
        return
    try:
        counted = taken(config, weights, device, host, setting, context, with_passes=False)
    # binding tells it, unless it may take the reference
    except Unsupported:
        return
    need = counted[Place.DEVICE]
    if need.total <= memory.free:
        return
    parts = ", ".join(_parts(need, context))
    remedies = "; or ".join(_remedies(weights, need, memory, context, name))
    raise OutOfMemory(
        what=f"the model in {name} does not fit on {device.name}",
        evidence=f"it needs {size(need.total)}: {parts}; "
        f"free {size(memory.free)} of {size(memory.total)}",
        fix=f"the largest effect first: {remedies}",
        code="CRT-3203",
    )


def _parts(need: Taken, context: int) -> list[str]:
    """Return what takes the memory, the largest part first."""
    parts = {
        "weights": need.weights,
        f"key and value cache for {context} tokens": need.kv,
        "recurrent state": need.recurrent,
        "tables": need.tables,
    }
    rows = sorted(parts.items(), key=lambda row: -row[1])
    return [f"{name} {size(nbytes)}" for name, nbytes in rows if nbytes]


def _remedies(
    weights: Mapping[str, HostWeight],
    need: Taken,
    memory: Memory,
    context: int,
    name: str | os.PathLike[str],
) -> list[str]:
    """Return what helps, the largest effect first; another place is named behind the best."""
    stored = need.weights if is_quantised(shares(weights)) else stored_as(weights, QUANTISED)
    others = memory.total - memory.free
    pages = max(-(-context // PAGE_ROWS), 1)
    cache = need.kv - need.kv // pages
    ways = {
        f"store the weights in {size(stored)}: `clover-rt quantize {name} FOLDER --format q4`": (
            need.weights - stored
        ),
        f"end other programs on the device, which hold {size(others)}": others,
        f"lower --context, which the cache grows with: up to {size(cache)}": cache,
    }
    told = [way for way in sorted(ways, key=lambda way: -ways[way]) if ways[way] > 0]
    told.insert(1, "use another device, or --backend cpu, which reads the weights from the file")
    return told
