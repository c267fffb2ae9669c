"""What `generate` takes: prompts and options of every kind, and what it says of wrong ones."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import clover_rt
from clover_rt.api import EndEvent, Opened, TextEvent, load, loading, open_model
from clover_rt.api.options import Options
from clover_rt.engine import Mode
from clover_rt.errors import BadInput, CloverError
from clover_rt.plugins import open_device
from tests.golden import checkpoint

CONTEXT = 64
MESSAGE = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def model():
    with load(context=CONTEXT) as model:
        yield model


@pytest.fixture(scope="module")
def opened():
    opened = open_model()
    yield opened
    opened.close()


def text_of(events):
    return "".join(e.text for e in events if isinstance(e, TextEvent))


def test_a_plain_string_is_one_stop(model):
    order = model.order("Hello", stop="demo")
    assert order.stop == ("demo",)
    *_, end = model.generate("Hello", stop="demo", mode="ar")
    assert isinstance(end, EndEvent)
    assert end.stats["stop_string"] == "demo"
    assert end.text.endswith("very small ")


def test_the_default_length_is_what_the_context_leaves(model):
    order = model.order([5] * 40)
    assert order.request.max_tokens == CONTEXT - 40
    assert model.order([5] * 40, max_new_tokens=None).request.max_tokens is None


def test_an_explicit_length_that_the_context_cannot_hold_is_an_error(model):
    with pytest.raises(BadInput, match="CRT-1036") as caught:
        model.generate([5] * 40, max_new_tokens=256)
    assert "leaves 24" in caught.value.evidence
    assert "1 to 24" in caught.value.fix
    assert "--context" in caught.value.fix


def test_more_context_is_advised_only_where_the_model_has_more(model, opened):
    with pytest.raises(BadInput, match="CRT-1035") as caught:
        model.generate([5] * 64)
    assert "--context" in caught.value.fix
    assert "4096" in caught.value.fix
    with pytest.raises(BadInput, match="CRT-1035") as caught:
        opened.order([5] * 4096)
    assert "--context" not in caught.value.fix
    assert "larger" not in caught.value.fix
    assert "4096" in caught.value.fix
    with pytest.raises(BadInput, match="CRT-1036") as caught:
        opened.order([5] * 4000, max_new_tokens=200)
    assert "context" not in caught.value.fix


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"max_new_tokens": "9"}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens"),
        ({"top_k": 2.5}, "top_k"),
        ({"block_size": 8.0}, "block_size"),
        ({"draft_width": "8", "mode": "self-spec"}, "draft_width"),
        ({"seed": 1.5, "temperature": 1}, "seed"),
        ({"temperature": "hot"}, "temperature"),
        ({"threshold": "high"}, "threshold"),
        ({"top_p": [1]}, "top_p"),
        ({"raw": "yes"}, "raw"),
        ({"system": 3}, "system"),
        ({"think": 1}, "think"),
        ({"stop": 7}, "stop"),
        ({"stop": ["a", 7]}, "stop"),
        ({"controls": "off"}, "controls"),
        ({"ignore_eos": None}, "ignore_eos"),
        ({"mode": 3}, "mode"),
        ({"accept": 1, "mode": "self-spec"}, "accept"),
    ],
    ids=str,
)
def test_an_option_of_a_wrong_kind_is_told_by_name(opened, options, says):
    with pytest.raises(BadInput, match="CRT-1028") as caught:
        opened.order("Hello", **options)
    assert caught.value.what.startswith(f"{says}=")


def test_an_unknown_option_comes_with_the_nearest(opened):
    with pytest.raises(BadInput, match="CRT-1029") as caught:
        opened.order("Hello", max_tokens=3)
    assert "did you mean 'max_new_tokens'?" in caught.value.fix


def test_numbers_of_numpy_are_numbers(opened):
    order = opened.order(
        np.array([5, 6]), max_new_tokens=np.int64(3), temperature=np.float32(0.5), seed=np.int32(2)
    )
    assert order.request.prompt == (5, 6)
    assert all(type(i) is int for i in order.request.prompt)
    assert opened.order([np.int32(5)]).request.prompt == (5,)


def test_a_mode_can_be_its_enum(opened):
    assert opened.order("Hello", mode=Mode.AR).request.mode is Mode.AR


def test_a_negative_temperature_is_refused_and_zero_is_named_as_greedy(opened):
    with pytest.raises(BadInput, match="CRT-1021") as caught:
        opened.order("Hello", temperature=-1)
    assert "0 (greedy) or above" in caught.value.evidence
    assert opened.order("Hello", temperature=0).request.sampling is None


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0}, {"mode": "self-spec"}], ids=["default", "zero", "self-spec"]
)
def test_a_seed_where_nothing_is_sampled_is_an_error(opened, options):
    with pytest.raises(BadInput, match="CRT-1067") as caught:
        opened.order("Hello", seed=3, **options)
    assert "seed=3" in caught.value.what
    assert opened.order("Hello", seed=3, top_k=4).request.sampling.seed == 3


@pytest.mark.parametrize(
    ("prompt", "code", "found"),
    [
        (123, "CRT-1055", "int"),
        (None, "CRT-1055", "NoneType"),
        (b"Hello", "CRT-1055", "bytes"),
        ({"role": "user"}, "CRT-1055", "dict"),
        ([72, "a"], "CRT-1056", "prompt[1] is a str"),
        ([72, 1.5], "CRT-1056", "prompt[1] is a float"),
        ([True], "CRT-1080", "item 0 is a bool"),
        (["Hello"], "CRT-1080", "item 0 is a str"),
        ([MESSAGE, "Hello"], "CRT-1080", "item 1 is a str"),
        ([], "CRT-1080", "it is empty"),
    ],
    ids=str,
)
def test_a_prompt_that_is_none_is_told_by_its_place(opened, prompt, code, found):
    with pytest.raises(BadInput, match=code) as caught:
        opened.order(prompt)
    assert found in caught.value.evidence


@pytest.mark.parametrize("raw", [False, True])
def test_a_place_in_the_prompt_does_not_count_the_template(opened, raw):
    with pytest.raises(BadInput, match="CRT-1070") as caught:
        opened.order("ab\udcff", raw=raw)
    assert caught.value.evidence == "character 2 is the byte 0xFF, which is not UTF-8"
    with pytest.raises(BadInput, match="CRT-1070") as caught:
        opened.order("a\ud800b", raw=raw)
    assert caught.value.evidence == "character 1 is U+D800, half of a surrogate pair"


def test_a_stop_string_without_a_tokenizer_is_told_as_that(tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(checkpoint("clover_tiny"), folder)
    (folder / "tokenizer.json").unlink()
    opened = open_model(folder)
    try:
        with pytest.raises(BadInput, match="CRT-1057") as caught:
            opened.order([5], stop="x")
    finally:
        opened.close()
    assert "leave stop out" in caught.value.fix
    assert "token ids" not in caught.value.fix


def test_a_closed_model_says_that_it_is_closed():
    with load(context=CONTEXT) as model:
        order = model.order("Hello")
    for call in (lambda: model.generate("Hello"), lambda: model.run(order)):
        with pytest.raises(CloverError, match="CRT-4120"):
            call()
    # a second close changes nothing
    model.close()


@pytest.mark.parametrize("failing", ["context_for", "the host"])
def test_a_device_is_closed_where_opening_fails_behind_it(monkeypatch, failing):
    closed = []

    def spied(name, device=None):
        if name == "cpu" and failing == "the host":
            raise CloverError("no host", "none", "none", "CRT-3002")
        backend, opened = open_device("cpu")
        monkeypatch.setattr(opened, "close", lambda: closed.append(name))
        return backend, opened

    monkeypatch.setattr(loading, "open_device", spied)
    context = 5000 if failing == "context_for" else None
    with pytest.raises(CloverError):
        open_model(backend="other", context=context)
    assert "other" in closed
    assert closed.count("cpu") == (1 if failing == "context_for" else 0)


def test_help_teaches_every_option():
    for method in (clover_rt.Model.generate, clover_rt.Model.order, Opened.order):
        assert "Options" in str(inspect.signature(method))
    doc = clover_rt.Model.generate.__doc__
    missing = [name for name in Options.__annotations__ if f"\n        {name} " not in doc]
    assert missing == []
