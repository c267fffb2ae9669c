"""The Python API: load a checkpoint on a backend, generate, read typed events.

    with clover_rt.load("path/to/checkpoint") as model:
        for event in model.generate("Hello"):
            if isinstance(event, clover_rt.TextEvent):
                print(event.text, end="")

This is the only place that wires model, weights, plan, engine and text together:

`source`      a checkpoint's files
`threads`     host threads of the cpu backend
`options`     what can be asked of a response
`choices`     names to choose from, and the nearest to one that is unknown
`order`       prompts and options to checked requests
`loading`     a checkpoint on a backend
`first_run`   two layers of it on a device that has not run it before, against the cpu
`remembered`  what has passed, in the cache folder
`model`       requests to responses
`response`    ids to text, stop strings, the end
`checkpoint`  what a checkpoint is, without loading it
`fitting`     what a checkpoint would take on a backend, without loading it
`operations`  the operations' contracts as data
"""

from clover_rt.api.checkpoint import describe
from clover_rt.api.loading import Opened, load, open_model
from clover_rt.api.model import Model
from clover_rt.api.operations import operations
from clover_rt.api.options import Options
from clover_rt.api.order import Order
from clover_rt.api.response import AnyEvent, Response, TextEvent
from clover_rt.backend import API as PLUGIN_API
from clover_rt.builtin import examples
from clover_rt.engine import (
    BlockEvent,
    EndEvent,
    PassEvent,
    PrefillEvent,
    RoundEvent,
    TokensEvent,
)
from clover_rt.plugins import Status, survey

__all__ = [
    "PLUGIN_API",
    "AnyEvent",
    "BlockEvent",
    "EndEvent",
    "Model",
    "Opened",
    "Options",
    "Order",
    "PassEvent",
    "PrefillEvent",
    "Response",
    "RoundEvent",
    "Status",
    "TextEvent",
    "TokensEvent",
    "describe",
    "examples",
    "load",
    "open_model",
    "operations",
    "survey",
]
