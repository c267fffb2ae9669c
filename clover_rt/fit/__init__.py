"""Does it fit: the memory of a checkpoint on a device, counted without reading a weight.

`counting`  a device whose memory is only counted
`memory`    what a plan takes on each device
`context`   the longest KV cache that fits
`room`      is there room for a load?
`weights`   a checkpoint's bytes by class of tensor and by format
`report`    sizes, budgets, the largest context: one dict
`render`    the dict as text
"""

from clover_rt.fit.context import context_for, kv_bytes_per_token
from clover_rt.fit.memory import Setting, Taken, capacity_for, taken
from clover_rt.fit.render import render
from clover_rt.fit.report import report
from clover_rt.fit.room import check_room

__all__ = [
    "Setting",
    "Taken",
    "capacity_for",
    "check_room",
    "context_for",
    "kv_bytes_per_token",
    "render",
    "report",
    "taken",
]
