"""Streamed text equals the whole decode, for any chunking; stop strings never leak."""

from __future__ import annotations

import golden
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.errors import BadInput
from clover_rt.text import StopStrings, Stream, Tokenizer

TOKENIZER = Tokenizer.load(golden.PROTO)
LIBRARY = tokenizers.Tokenizer.from_file(str(golden.PROTO / "tokenizer.json"))
TINY = Tokenizer.load(golden.checkpoint("clover_tiny"))

texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["हिन्दी", "日本語のテキスト", "👩‍👩‍👧‍👦 and 🇩🇪", "a\u0301 é", "naïve — “ok”"]),
)


def chunked(data, values):
    """Draw a way to cut a list into runs, empty ones included."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=8)))
    return [values[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]


def streamed(stream, chunks):
    """Return the deltas of a whole run."""
    return [stream.feed(chunk) for chunk in chunks] + [stream.flush()]


@given(st.data(), texts)
def test_streamed_text_is_the_text_for_any_chunking(data, text):
    text = LIBRARY.normalizer.normalize_str(text)
    chunks = chunked(data, TOKENIZER.encode(text))
    deltas = streamed(Stream(TOKENIZER), chunks)
    assert "".join(deltas) == text
    assert all("\ufffd" not in d for d in deltas) or "\ufffd" in text


@given(st.data(), st.lists(st.integers(0, 1023), max_size=40))
def test_streamed_ids_equal_the_whole_decode_even_for_broken_utf8(data, ids):
    deltas = streamed(Stream(TOKENIZER), chunked(data, ids))
    assert "".join(deltas) == LIBRARY.decode(ids, skip_special_tokens=True)


def test_an_incomplete_character_is_held_and_then_released():
    ids = TINY.encode("👍")
    assert len(ids) == 4
    stream = Stream(TINY)
    assert [stream.feed([i]) for i in ids] == ["", "", "", "👍"]
    assert stream.flush() == ""


def test_an_incomplete_character_at_the_end_becomes_one_replacement():
    stream = Stream(TINY)
    assert stream.feed(TINY.encode("a👍")[:-1]) == "a"
    assert stream.flush() == "\ufffd"


def test_special_tokens_are_hidden_and_think_tags_are_shown():
    ids = TOKENIZER.encode_scaffold("<think>a</think>b<|im_end|><|mask|>")
    assert ids[-2:] == [1020, 1021]
    assert "".join(streamed(Stream(TOKENIZER), [ids])) == "<think>a</think>b"


def test_a_stop_id_that_is_ordinary_text_is_hidden():
    ids = TOKENIZER.encode("ab!")
    assert "".join(streamed(Stream(TOKENIZER, hidden=[ids[-1]]), [ids])) == "ab"


@given(st.data(), st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1), max_size=3))
def test_text_is_cut_at_the_first_stop_that_completes(data, text, stops):
    # the definition, letter by letter: the first end wins, the longest of those that end there
    want = text
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            want = text[: end - max(map(len, ending))]
            break
    cutter = StopStrings(stops)
    deltas = [cutter.feed("".join(c)) for c in chunked(data, list(text))]
    assert "".join(deltas) + cutter.flush() == want
    assert (cutter.stopped is None) == (want == text and not any(s in text for s in stops))


@given(st.data(), st.text("ab", max_size=20), st.text("ab", min_size=1))
def test_no_more_is_held_back_than_could_start_a_stop(data, text, stop):
    cutter = StopStrings([stop])
    seen = out = ""
    for letter in text:
        seen += letter
        out += cutter.feed(letter)
        if cutter.stopped:
            break
        held = max(n for n in range(len(stop)) if seen.endswith(stop[:n]))
        assert out == seen[: len(seen) - held]


def test_a_stop_across_tokens_is_cut_and_ends_the_stream():
    stream = Stream(TOKENIZER, stops=["END"])
    out = [stream.feed([i]) for i in TOKENIZER.encode("so E, EN, END of it")]
    assert "".join(out) == "so E, EN, "
    assert stream.stopped == "END"
    assert stream.feed(TOKENIZER.encode("more")) == ""
    assert stream.flush() == ""


def test_a_stop_completed_by_the_final_replacement_still_cuts():
    stream = Stream(TINY, stops=["\ufffd"])
    assert stream.feed(TINY.encode("a👍")[:-1]) == "a"
    assert stream.flush() == ""
    assert stream.stopped == "\ufffd"


def test_an_empty_stop_string_is_an_error():
    with pytest.raises(BadInput) as caught:
        Stream(TOKENIZER, stops=["x", ""])
    assert caught.value.code == "CRT-1072"
