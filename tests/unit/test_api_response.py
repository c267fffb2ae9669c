"""From the engine's ids to a response: text, stop strings, what is counted."""

from __future__ import annotations

import gc

import pytest

import clover_rt
from clover_rt.api.response import Response, TextEvent
from clover_rt.engine import BlockEvent, EndEvent, TokensEvent
from clover_rt.text import Stream, Tokenizer
from tests.golden import PROTO

STATS = {
    "tokens": 0,
    "prefill_tokens": 1,
    "passes": 2,
    "blocks": 1,
    "decode_ms": 10.0,
}
EOS = 1020


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(PROTO)


class Run:
    """A generation that gives ids in these groups, and ends when it is cancelled."""

    def __init__(self, groups, reason="stop"):
        self.groups = groups
        self.reason = reason
        self.cancelled = self.closed = False

    def __iter__(self):
        sent = ()
        for ids in self.groups:
            if self.cancelled:
                yield EndEvent(sent, "cancelled", STATS | {"tokens": len(sent)})
                return
            sent += tuple(ids)
            yield TokensEvent(tuple(ids), (0.5,) * len(ids))
            yield BlockEvent(0, ())
        yield EndEvent(sent, self.reason, STATS | {"tokens": len(sent)})

    def cancel(self):
        self.cancelled = True

    def close(self):
        self.closed = True


def groups(tokenizer, text, size):
    """Return the ids of a text and the end of a turn, `size` at a time."""
    ids = [*tokenizer.encode(text), EOS]
    return [ids[i : i + size] for i in range(0, len(ids), size)]


def answer(tokenizer, run, stops=()):
    events = list(Response(run, Stream(tokenizer, stops, [EOS]), {"mode": "ar"}))
    assert [type(e) for e in events].count(EndEvent) == 1
    end = events[-1]
    assert "".join(e.text for e in events if isinstance(e, TextEvent)) == end.text
    assert tuple(i for e in events if isinstance(e, TokensEvent) for i in e.ids) == end.tokens
    assert all(len(e.ids) == len(e.probabilities) for e in events if isinstance(e, TokensEvent))
    return end


@pytest.mark.parametrize("size", [1, 2, 3, 7, 32])
def test_the_text_is_the_same_however_the_ids_come(tokenizer, size):
    text = "one, two \N{GRINNING FACE} three é 四"
    end = answer(tokenizer, Run(groups(tokenizer, text, size)))
    assert (end.text, end.finish_reason) == (text, "stop")
    assert end.stats["stop_string"] is None
    assert end.stats["dropped_tokens"] == 0
    assert end.stats["tokens"] == len(end.tokens)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 32])
def test_a_stop_string_ends_the_run_and_keeps_the_statistics(tokenizer, size):
    run = Run(groups(tokenizer, "count 1, 2, 3, 4, 5, 6, 7", size))
    end = answer(tokenizer, run, ["never", "3, 4"])
    assert (end.text, end.finish_reason) == ("count 1, 2, ", "stop")
    assert run.cancelled
    assert end.stats["stop_string"] == "3, 4"
    assert tokenizer.decode(end.tokens) == "count 1, 2, 3, 4"
    assert end.stats["tokens"] == len(end.tokens)
    # one of the tokens came from the prefill
    assert end.stats["tokens_per_pass"] == (len(end.tokens) - 1) / 2
    assert end.stats["ms_per_pass"] == 5
    assert end.stats["tokens_per_s"] == 1000 * (len(end.tokens) - 1) / 10
    assert end.stats["blocks"] == 1
    assert end.stats["mode"] == "ar"


def test_ids_behind_a_stop_string_are_dropped_and_counted(tokenizer):
    whole = groups(tokenizer, "count 1, 2, 3, 4, 5, 6, 7", 64)
    end = answer(tokenizer, Run(whole), ["3, 4"])
    assert end.stats["dropped_tokens"] == len(whole[0]) - len(end.tokens) > 0


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_text_held_back_as_the_start_of_a_stop_comes_at_the_end(tokenizer, reason):
    ids = tokenizer.encode("one, two, thr")
    end = answer(tokenizer, Run([ids], reason), ["three"])
    assert (end.text, end.finish_reason) == ("one, two, thr", reason)
    assert end.stats["stop_string"] is None


def test_an_incomplete_character_at_the_end_becomes_a_replacement(tokenizer):
    broken = next(i for i in range(tokenizer.size) if tokenizer.bytes_of(i) == b"\xe5")
    end = answer(tokenizer, Run([[broken]], "length"))
    assert end.text == "\N{REPLACEMENT CHARACTER}"


def test_a_response_without_a_tokenizer_has_ids_and_no_text():
    end = list(Response(Run([[1, 2], [3]], "length"), None, {}))[-1]
    assert (end.tokens, end.text, end.finish_reason) == ((1, 2, 3), "", "length")


def test_leaving_the_context_closes_the_run(tokenizer):
    run = Run(groups(tokenizer, "one, two", 1))
    with Response(run, Stream(tokenizer), {}) as response:
        next(response)
    assert run.closed


def test_a_response_that_is_left_by_break_frees_its_slot():
    with clover_rt.load(context=128, slots=2) as model:
        gc.disable()
        try:
            for _ in range(3):
                for _ in model.generate("Hello", max_new_tokens=40):
                    break
            assert model.engine.store.slots.free == 2
        finally:
            gc.enable()
