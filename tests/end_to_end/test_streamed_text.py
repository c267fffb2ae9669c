"""Streamed text is the plain answer: 500 random token sequences, cut into any blocks.

The plain answer is computed from the whole, by another program: the tokenizers library decodes all
ids at once, and the text is cut at the earliest end of a stop string.
"""

from __future__ import annotations

import random

import pytest
import tokenizers

from clover_rt.text import Stream, Tokenizer
from tests.golden import PROTO, checkpoint

FOLDERS = {"clover-proto": PROTO, "clover_tiny": checkpoint("clover_tiny")}
TOKENIZERS = {name: Tokenizer.load(folder) for name, folder in FOLDERS.items()}
LIBRARY = {
    name: tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name, folder in FOLDERS.items()
}
SEQUENCES = 250
PIECES = (
    "Hello, world. ",
    "END",
    "EN",
    "END of it",
    "a stop: \n\n###",
    "👍🏽",
    "👩‍👩‍👧‍👦",
    "🇩🇪🇫🇷",
    "日本語のテキスト",
    "中文。",
    "한국어",
    "हिन्दी",
    "e\u0301",
    "naïve “ok”",
    "\ufffd",
    "\x00\x7f",
    "\u200d\u2028",
    "𝔘𝔫𝔦",
)
STOPS = ("END", "END of", "###", "\n\n", "👍", "語", "中文。", "\ufffd", "d. E", "l", "NDE", "🇫🇷")


def sequence(rng: random.Random, tokenizer: Tokenizer) -> list[int]:
    """Return ids of text, of bytes that are no UTF-8, and of control tokens, mixed."""
    ids: list[int] = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.6:
            ids += tokenizer.encode(rng.choice(PIECES))
        elif kind < 0.75:
            # a character whose bytes are not all there
            part = tokenizer.encode(rng.choice(["👍", "語", "हि"]))
            ids += part[: rng.randint(0, len(part))] if rng.random() < 0.5 else part[1:]
        elif kind < 0.9:
            ids += [rng.randrange(tokenizer.size) for _ in range(rng.randint(1, 6))]
        else:
            ids.append(rng.choice(sorted(tokenizer.control_ids)))
    return ids


def plain(name: str, ids: list[int], stops: list[str], hidden: list[int]) -> str:
    """Return the answer from the whole: decode once, then find the stop that ends first."""
    text = LIBRARY[name].decode([i for i in ids if i not in hidden], skip_special_tokens=True)
    ends = [(text.index(s) + len(s), text.index(s)) for s in stops if s in text]
    return text[: min(ends)[1]] if ends else text


def blocks(rng: random.Random, ids: list[int]) -> list[list[int]]:
    """Return ids cut as modes emit them: one by one, in blocks, or anyhow."""
    size = rng.choice([1, 2, 8, 32, None])
    cuts = [0]
    while cuts[-1] < len(ids):
        cuts.append(cuts[-1] + (size if size is not None else rng.randint(1, 9)))
    return [ids[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_streamed_text_joined_is_the_plain_answer(name):
    tokenizer = TOKENIZERS[name]
    stopped = broken = 0
    for seed in range(SEQUENCES):
        rng = random.Random(f"{name} {seed}")
        ids = sequence(rng, tokenizer)
        stops = rng.sample(STOPS, rng.randint(0, 3))
        hidden = rng.sample(range(tokenizer.size), 2)
        want = plain(name, ids, stops, hidden)
        stream = Stream(tokenizer, stops, hidden)
        text = ""
        for block in blocks(rng, ids):
            delta = stream.feed(block)
            # half a character would not encode; appending is all that may happen
            delta.encode("utf-8")
            text += delta
            assert want.startswith(text), f"seed {seed}: {text!r} is no beginning of {want!r}"
        text += stream.flush()
        assert text == want, f"seed {seed}"
        assert (stream.stopped is not None) == any(
            s in plain(name, ids, [], hidden) for s in stops
        ), f"seed {seed}"
        stopped += stream.stopped is not None
        broken += "\ufffd" in text
    # the sequences are of every kind
    assert stopped > SEQUENCES // 10
    assert broken > SEQUENCES // 10
    assert stopped < SEQUENCES * 9 // 10
