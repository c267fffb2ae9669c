"""Text to token ids and back, with control tokens kept apart from content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders

from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.text.files import read_object


@dataclass(frozen=True, slots=True)
class Control:
    """A token that stands for itself in scaffolding and can never come out of content.

    is_special  hidden from output text (`<|im_end|>`); others are shown (`</think>`)
    lstrip, rstrip  the token swallows white space before or after it
    """

    id: int
    content: str
    is_special: bool
    lstrip: bool = False
    rstrip: bool = False


class Tokenizer:
    """A checkpoint's byte-level tokenizer.

    Two ways in: `encode` takes content, where every control token's spelling is ordinary text;
    `encode_scaffold` takes text written by the runtime or, on purpose, by the user (`--raw`),
    where control tokens are recognised.
    """

    def __init__(self, inner: tokenizers.Tokenizer, mask_token: str | None = None) -> None:
        """Wrap a loaded tokenizer; `mask_token` is the spelling that the checkpoint declares.

        Raises BadCheckpoint (CRT-1184) when ids do not decode byte by byte.
        """
        if not isinstance(inner.decoder, decoders.ByteLevel):
            raise BadCheckpoint(
                what="the tokenizer cannot be streamed",
                evidence=f"tokenizer.json: decoder {type(inner.decoder).__name__}, not ByteLevel",
                fix="use the checkpoint's original tokenizer.json (byte-level BPE)",
                code="CRT-1184",
            )
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._mask_token = mask_token
        self._bytes: dict[int, bytes] = {}
        self.controls: tuple[Control, ...] = tuple(
            Control(id, t.content, t.special, t.lstrip, t.rstrip)
            for id, t in sorted(inner.get_added_tokens_decoder().items())
        )
        self.control_ids = frozenset(c.id for c in self.controls)
        self.special_ids = frozenset(c.id for c in self.controls if c.is_special)
        # shares the model, so the vocabulary is held once; it has no added tokens to match
        self._plain = tokenizers.Tokenizer(inner.model)
        if inner.normalizer is not None:
            self._plain.normalizer = inner.normalizer
        if inner.pre_tokenizer is not None:
            self._plain.pre_tokenizer = inner.pre_tokenizer

    @classmethod
    def load(cls, folder: Path | str) -> Tokenizer:
        """Read `tokenizer.json` (and the mask token's name) of a checkpoint folder.

        Raises BadCheckpoint: CRT-1182 no file, CRT-1183 unreadable, CRT-1184 not byte-level.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise BadCheckpoint(
                what="the checkpoint has no tokenizer",
                evidence=f"{path} does not exist",
                fix="copy tokenizer.json into the folder, or give prompts as token ids",
                code="CRT-1182",
            )
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        # the library raises bare Exception for most kinds of bad file, and what panics in it is
        # no Exception at all
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise BadCheckpoint(
                what="cannot read tokenizer.json",
                evidence=f"{path}: {error}",
                fix="restore the file from the checkpoint's source",
                code="CRT-1183",
            ) from error
        settings = read_object(path.with_name("tokenizer_config.json"))
        return cls(inner, spelling(settings.get("mask_token")))

    @cached_property
    def size(self) -> int:
        """One past the largest id; ids from here on have no text and must not be emitted."""
        count = self._inner.get_vocab_size(with_added_tokens=True)
        if count and self.token(count - 1) is not None:
            return int(count)
        # ids with gaps: the count says too little
        return max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def token(self, id: int) -> str | None:
        """Return the spelling of an id, or None where it has none."""
        return self._inner.id_to_token(id) if id >= 0 else None

    def id_of(self, token: str) -> int | None:
        """Return the id of one token's spelling, or None."""
        id = self._inner.token_to_id(token)
        return None if id is None else int(id)

    def check_mask(self, mask_id: int) -> None:
        """Raise BadCheckpoint unless the mask id is one known control token.

        CRT-1185 the id is unknown; CRT-1186 its spelling is ordinary text, so a prompt could
        forge it; CRT-1187 the tokenizer's files declare another mask token.
        """
        where = f"config.json: mask_token_id {mask_id}"
        token = self.token(mask_id)
        if token is None:
            raise BadCheckpoint(
                what="the mask token is unknown to the tokenizer",
                evidence=f"{where}; tokenizer.json: ids 0 to {self.size - 1}",
                fix="use the config.json and tokenizer.json of the same release",
                code="CRT-1185",
            )
        if mask_id not in self.control_ids or self.encode_scaffold(token) != [mask_id]:
            raise BadCheckpoint(
                what="the mask token is not a single control token",
                evidence=f"{where}; tokenizer.json: {token!r} is ordinary text",
                fix="use the config.json and tokenizer.json of the same release",
                code="CRT-1186",
            )
        if self._mask_token is not None and self._mask_token != token:
            raise BadCheckpoint(
                what="the checkpoint's files disagree on the mask token",
                evidence=f"{where} is {token!r}; tokenizer_config.json: {self._mask_token!r}",
                fix="use the config.json and tokenizer_config.json of the same release",
                code="CRT-1187",
            )

    def encode(self, text: str) -> list[int]:
        """Return the ids of content; no id of a control token is ever among them."""
        valid(text)
        encoding = self._plain.encode(text, add_special_tokens=False)
        ids = list(encoding.ids)
        if self.control_ids.isdisjoint(ids):
            return ids
        # a vocabulary that also spells a control token whole: cut inside its spelling
        at = next(i for i, id in enumerate(ids) if id in self.control_ids)
        start, end = encoding.offsets[at]
        cut = start + 1 if end - start > 1 else end
        if cut >= len(text):
            raise BadInput(
                what="the text cannot be encoded without a control token",
                evidence=f"{text[start:end]!r} has only the id {ids[at]}",
                fix="remove it from the text",
                code="CRT-1071",
            )
        return self.encode(text[:cut]) + self.encode(text[cut:])

    def encode_scaffold(self, text: str) -> list[int]:
        """Return the ids of text in which control tokens are recognised."""
        valid(text)
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def encode_parts(self, parts: Iterable[str | Control]) -> list[int]:
        """Return the ids of runs of content with control tokens between them."""
        ids: list[int] = []
        runs = list(parts)
        for i, part in enumerate(runs):
            if isinstance(part, Control):
                ids.append(part.id)
                continue
            before = runs[i - 1] if i else None
            after = runs[i + 1] if i + 1 < len(runs) else None
            if isinstance(before, Control) and before.rstrip:
                part = part.lstrip()
            if isinstance(after, Control) and after.lstrip:
                part = part.rstrip()
            ids += self.encode(part)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of ids; incomplete UTF-8 becomes U+FFFD."""
        skip = self.special_ids if skip_special else frozenset[int]()
        return b"".join(self.bytes_of(id) for id in ids if id not in skip).decode(
            "utf-8", "replace"
        )

    def bytes_of(self, id: int) -> bytes:
        """Return the bytes that an id adds to the text; none for an unknown id."""
        found = self._bytes.get(id)
        if found is None:
            found = self._bytes[id] = self._spell(id)
        return found

    def _spell(self, id: int) -> bytes:
        token = self.token(id)
        if token is None:
            return b""
        if id in self.control_ids:
            return token.encode()
        try:
            return bytes(BYTE_OF[c] for c in token)
        except KeyError:
            return token.encode()

    @cached_property
    def control_pattern(self) -> re.Pattern[str]:
        """Matches every control token's spelling, the longest first."""
        names = sorted((c.content for c in self.controls), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")


def spelling(token: Any) -> str | None:
    """Return the text of a token entry: a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def valid(text: str) -> None:
    """Raise BadInput (CRT-1070) for text with lone surrogates, which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        point = ord(text[error.start])
        # Python keeps a byte that it cannot decode, in an argument say, as one of these
        kept = 0xDC80 <= point <= 0xDCFF
        byte = f"the byte 0x{point - 0xDC00:02X}, which is not UTF-8"
        raise BadInput(
            what="the text is not valid Unicode",
            evidence=f"character {error.start} is "
            f"{byte if kept else f'U+{point:04X}, half of a surrogate pair'}",
            fix="send the text as UTF-8",
            code="CRT-1070",
        ) from error


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of the byte-level alphabet (GPT-2's).

    Printable Latin-1 bytes stand for themselves; the other 68 follow from U+0100 in byte order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


BYTE_OF = byte_alphabet()
