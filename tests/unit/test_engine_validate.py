"""Requests are refused before any work, with the field, its value and a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clover_rt.engine import Accept, Engine, Mode, ModelFacts, Request, Sampling, Settings
from clover_rt.errors import BadInput
from clover_rt.spec import Controls, StepLayout, TableClass
from tests.unit.engine_fake import FACTS, KNOWN, MASK, FakeRunner, engine_of

GOOD = Request((3, 4), max_tokens=5)
AR = replace(GOOD, mode=Mode.AR)
SPEC = replace(GOOD, mode=Mode.SELF_SPEC)


@pytest.mark.parametrize(
    "request_, code, words",
    [
        (replace(GOOD, prompt=()), "CRT-1032", "0 token ids"),
        (replace(GOOD, prompt=(3, MASK)), "CRT-1033", r"prompt\[1\] is the mask id"),
        (replace(GOOD, prompt=(3, -1)), "CRT-1034", r"prompt\[1\]=-1"),
        (replace(GOOD, prompt=(KNOWN,)), "CRT-1034", "0 to 23"),
        (replace(GOOD, stops=(26,)), "CRT-1034", r"stops\[0\]=26"),
        (replace(GOOD, banned=frozenset({99})), "CRT-1034", r"banned\[0\]=99"),
        (replace(GOOD, controls=Controls(think_end=26)), "CRT-1034", "think_end"),
        (replace(GOOD, prompt=(3,) * 256), "CRT-1035", "256"),
        (replace(GOOD, max_tokens=255), "CRT-1036", "leaves 254"),
        (replace(GOOD, max_tokens=0), "CRT-1036", "1 to 254"),
        (replace(GOOD, threshold=1.5), "CRT-1039", "1.5"),
        (replace(GOOD, block_size=3), "CRT-1040", "divide 8"),
        (replace(GOOD, block_size=0), "CRT-1040", "1 to 256"),
        (replace(GOOD, block_size=16), "CRT-1040", "divide 8"),
        (replace(SPEC, draft_width=3), "CRT-1042", r"\[1, 2, 4, 8\]"),
        (replace(AR, threshold=0.5), "CRT-1030", "threshold"),
        (replace(SPEC, block_size=4), "CRT-1030", "block_size"),
        (replace(AR, early_end=True), "CRT-1030", "early_end"),
        (replace(GOOD, accept=Accept.TYPICAL), "CRT-1030", "self-spec"),
        (replace(AR, draft_width=4), "CRT-1030", "draft_width"),
        (replace(SPEC, sampling=Sampling()), "CRT-1031", "greedy"),
        (replace(AR, sampling=Sampling(temperature=0.0)), "CRT-1044", "temperature"),
        (replace(AR, sampling=Sampling(temperature=float("nan"))), "CRT-1044", "temperature"),
        (replace(AR, sampling=Sampling(top_k=65)), "CRT-1044", "top_k"),
        (replace(AR, sampling=Sampling(top_p=0.0)), "CRT-1044", "top_p"),
        (replace(AR, sampling=Sampling(seed=-1)), "CRT-1044", "seed"),
        (replace(AR, controls=Controls(repetition=0.0)), "CRT-1045", "repetition"),
        (replace(AR, controls=Controls(presence=float("inf"))), "CRT-1045", "presence"),
        (replace(AR, stops=tuple(range(21))), "CRT-1020", "21 stop ids"),
        (replace(AR, banned=frozenset(range(KNOWN))), "CRT-1048", "bans every"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(request_, code, words):
    runner = FakeRunner()
    with pytest.raises(BadInput, match=words) as caught:
        engine_of(runner).generate(request_)
    assert caught.value.code == code
    assert not runner.passes


def test_a_causal_twin_has_only_mode_ar():
    runner = FakeRunner(classes=frozenset({TableClass.COMMIT}))
    engine = Engine(runner, ModelFacts(KNOWN))
    for request in (GOOD, SPEC):
        with pytest.raises(BadInput, match="CRT-1037"):
            engine.generate(request)
    assert len(list(engine.generate(AR))[-1].tokens) == 5


def test_a_plan_without_previews_has_only_mode_ar():
    runner = FakeRunner(classes=frozenset({TableClass.COMMIT, TableClass.PREVIEW}))
    with pytest.raises(BadInput, match="does not run verify passes"):
        engine_of(runner).generate(SPEC)


def test_a_block_or_a_draft_wider_than_a_pass_is_refused():
    runner = FakeRunner(layout=StepLayout(4, 2, 4, 2, 8))
    with pytest.raises(BadInput, match="CRT-1041"):
        engine_of(runner).generate(GOOD)
    with pytest.raises(BadInput, match="CRT-1043"):
        engine_of(runner).generate(replace(SPEC, draft_width=8))


def test_the_default_draft_is_the_widest_that_a_tape_holds():
    runner = FakeRunner()
    runner.widest_draft = 5
    engine = Engine(runner, replace(FACTS, block_size=32))
    list(engine.generate(replace(SPEC, max_tokens=40)))
    assert max(s.rows for p in runner.passes for s in p.segments) == 4


def test_a_drafter_that_gives_too_little_is_named():
    request = replace(SPEC, max_tokens=20, drafter=lambda ids, wanted: [3])
    with pytest.raises(BadInput, match="CRT-1049"):
        list(engine_of(FakeRunner()).generate(request))


def test_a_negative_chunk_is_refused():
    with pytest.raises(BadInput, match="CRT-1046"):
        Engine(FakeRunner(), FACTS, Settings(prefill_chunk=-1))
