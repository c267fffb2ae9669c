"""The engine: sequences, the decoding modes and their passes; token ids only, no text.

`runner`    what a device plan offers to the engine, and the table of one pass
`request`   one generation as asked, checked before any work
`sequence`  one sequence's slot, pages, committed ids, tape and snapshots
`modes`     diffusion, autoregressive, self_spec: generators of work
`table`     the pass of several sequences' work; `execute` runs it, `failure` explains it
`scheduler` several sequences in one pass
`generation` one request as it runs: its events, cancel and close
`engine`    the public face
"""

from clover_rt.engine.engine import Engine
from clover_rt.engine.events import (
    BlockEvent,
    EndEvent,
    ErrorEvent,
    Event,
    Fixed,
    PassEvent,
    PrefillEvent,
    RoundEvent,
    TokensEvent,
)
from clover_rt.engine.facts import ModelFacts, Settings
from clover_rt.engine.generation import Generation
from clover_rt.engine.request import Accept, Drafter, Mode, Request
from clover_rt.engine.runner import Limits, Runner
from clover_rt.engine.sampling import Sampling
from clover_rt.engine.scheduler import Scheduler
from clover_rt.engine.sequence import Sequence, Snapshot
from clover_rt.engine.validate import validate
from clover_rt.spec import Pass

__all__ = [
    "Accept",
    "BlockEvent",
    "Drafter",
    "EndEvent",
    "Engine",
    "ErrorEvent",
    "Event",
    "Fixed",
    "Generation",
    "Limits",
    "Mode",
    "ModelFacts",
    "Pass",
    "PassEvent",
    "PrefillEvent",
    "Request",
    "RoundEvent",
    "Runner",
    "Sampling",
    "Scheduler",
    "Sequence",
    "Settings",
    "Snapshot",
    "TokensEvent",
    "validate",
]
