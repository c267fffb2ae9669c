"""`ar`: one token after the other."""

from __future__ import annotations

from collections.abc import Generator

from clover_rt.engine.events import Event, TokensEvent
from clover_rt.engine.request import Plan
from clover_rt.engine.sampling import choose
from clover_rt.engine.stats import Stats
from clover_rt.engine.think import ThinkState
from clover_rt.engine.work import Answer, Ask, Part, Work
from clover_rt.spec import Kind


def autoregressive(
    plan: Plan, answer: Answer, stats: Stats
) -> Generator[Work | Event, Answer, str]:
    """Decode from the answer for the prompt's last row. Returns why it ended."""
    think = ThinkState(plan.controls.think_end, plan.closed)
    emitted = 0
    stats.prefill_tokens = 1
    while True:
        token, p = choose(answer.picks, 0, plan.request.sampling, emitted + 1, 0)
        emitted += 1
        think.count((token,))
        yield TokensEvent((token,), (float(p),))
        if token in plan.stops:
            return "stop"
        if emitted == plan.max_tokens:
            return "length"
        ask = Ask(0, emitted + 1, think.is_open())
        answer = yield Work((Part(Kind.COMMIT, (token,), (ask,)),), (token,), plan.top)
        stats.passes += 1
        stats.decode_ms += answer.ms
