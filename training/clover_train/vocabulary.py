"""The tokenizer: whole words that the tasks use, single bytes for everything else.

The pre-tokenizer is the release's. A piece that is in the vocabulary is one token; any other
piece falls apart into bytes, so that an unseen word is a row of letters that can be spelled and
copied one by one, and a known word is the same token wherever it stands after a space.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from clover_train.mixture import CHAT_TEMPLATE

PIECES = Path(__file__).parents[1] / "pieces.txt"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
TAGS = ("<think>", "</think>")
SIZE = 1024


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def pieces() -> list[str]:
    """Return the pieces longer than a byte, as ByteLevel writes them, the most frequent first.

    They were counted once over 60,000 generated conversations and never change: a checkpoint's
    tokenizer outlives the shares and sizes of the tasks.
    """
    return PIECES.read_text(encoding="utf-8").splitlines()


def build() -> Tokenizer:
    """Return the tokenizer: 256 bytes, the most frequent pieces, six added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = SIZE - len(alphabet) - len(SPECIAL) - len(TAGS)
    words = alphabet + pieces()
    assert len(words) == len(alphabet) + room
    model = models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in TAGS])
    assert tokenizer.get_vocab_size() == SIZE
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 4096,
        "add_prefix_space": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
