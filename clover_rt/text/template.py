"""Chat messages to prompt ids through the checkpoint's own Jinja template.

Content can never become a control token. Every control token that the *template* spells is
replaced, in its source, by one private character that no message contains; after rendering, those
characters are the only control tokens, and everything between them is encoded as plain text. So
templates may trim, split and join content as they like, and what was lost on the way is a control
token less, never one more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.text import sandbox
from clover_rt.text.files import read_object, read_text
from clover_rt.text.tokenizer import Control, Tokenizer, spelling, valid

Message = Mapping[str, Any]

ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
PRIVATE = range(0x100000, 0x10FFFE)
"""Characters that can stand for control tokens: supplementary private use area B."""

SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
"""Variables that templates may use for tokens of tokenizer_config.json."""


class Template:
    """A chat template bound to the tokenizer whose control tokens it spells."""

    def __init__(
        self, source: str, tokenizer: Tokenizer, names: Mapping[str, str] | None = None
    ) -> None:
        """Compile a template; `names` are token variables such as eos_token.

        Raises BadCheckpoint (CRT-1188) where the template is not valid Jinja.
        """
        self._source = source
        self._tokenizer = tokenizer
        self._names = dict(names or {})
        # lru_cache on a method would keep the template alive
        self._compiled = lru_cache(maxsize=2)(self._compile)
        self._compiled(PRIVATE.start)

    @classmethod
    def load(cls, folder: Path | str, tokenizer: Tokenizer) -> Template | None:
        """Read chat_template.jinja or tokenizer_config.json of a folder; None without a template.

        Raises BadCheckpoint (CRT-1188) where the template is not valid Jinja.
        """
        folder = Path(folder)
        settings = read_object(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        source = read_text(file) if file.is_file() else settings.get("chat_template")
        if isinstance(source, list) and all(isinstance(t, dict) for t in source):
            # named templates: the one called default is for chat
            named = (t.get("template") for t in source if t.get("name") == "default")
            source = next(named, None)
        if source is None:
            return None
        if not isinstance(source, str):
            raise _unreadable(f"chat_template is {type(source).__name__}, not a text")
        names = {n: t for n in SPECIAL_NAMES if (t := spelling(settings.get(n))) is not None}
        return cls(source, tokenizer, names)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        system: str | None = None,
        think: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Return the prompt ids of a conversation.

        messages  dicts with `role` and `content` (a string or a list of text parts), and what else
                  the template reads (`reasoning_content`, `tool_calls`, ...)
        system    a system message put in front; an error when there is one already
        think     sets the template's `enable_thinking`; None leaves its default
        Raises BadInput: CRT-1080 no messages, CRT-1085 a role, CRT-1081 a part that is not text,
        CRT-1082 the template refuses, CRT-1083 two system messages, CRT-1084 no private character
        is left; BadCheckpoint (CRT-1189) where the template does not end or makes too much text;
        and what Tokenizer.encode raises.
        """
        parts = self._parts(messages, system, think, tools, add_generation_prompt)
        return self._tokenizer.encode_parts(parts)

    def render(
        self,
        messages: Sequence[Message],
        *,
        system: str | None = None,
        think: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt as people read it; for ids use `encode`, which this cannot forge."""
        parts = self._parts(messages, system, think, tools, add_generation_prompt)
        return "".join(p.content if isinstance(p, Control) else p for p in parts)

    def _parts(
        self,
        messages: Sequence[Message],
        system: str | None,
        think: bool | None,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[str | Control]:
        turns = checked(messages, system)
        base = free_base((turns, tools), len(self._tokenizer.controls))
        marks = {c.content: chr(base + i) for i, c in enumerate(self._tokenizer.controls)}
        for turn in turns:
            if turn["role"] == "assistant":
                turn["content"] = mark_thought(turn["content"], marks)
        variables: dict[str, Any] = {n: marks.get(t, t) for n, t in self._names.items()}
        if think is not None:
            variables["enable_thinking"] = think
        variables |= {
            "messages": turns,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = sandbox.render(self._compiled(base), variables)
        except sandbox.Endless as error:
            raise BadCheckpoint(
                what="the chat template does not come to an end",
                evidence=f"{error.message}; {len(turns)} messages were given",
                fix="restore chat_template.jinja or tokenizer_config.json from its source, or "
                "send a raw prompt",
                code="CRT-1189",
            ) from error
        # a template is a program of the checkpoint: whatever it raises is about these messages
        except Exception as error:
            raise BadInput(
                what="the chat template cannot take these messages",
                evidence=f"{type(error).__name__}: {error}",
                fix="change the messages as the template says, or send a raw prompt",
                code="CRT-1082",
            ) from error
        return split_marks(text, self._tokenizer.controls, base)

    def _compile(self, base: int) -> jinja2.Template:
        marks = {c.content: chr(base + i) for i, c in enumerate(self._tokenizer.controls)}
        source = self._tokenizer.control_pattern.sub(lambda m: marks[m.group()], self._source)
        try:
            return sandbox.Environment().load(source)
        except jinja2.TemplateSyntaxError as error:
            raise _unreadable(f"line {error.lineno}: {error.message}") from error
        # deep nesting: Python's own compiler gives up with an error of its choice
        except (RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise _unreadable(f"{type(error).__name__}: {error}") from error


def _unreadable(evidence: str) -> BadCheckpoint:
    return BadCheckpoint(
        what="cannot read the chat template",
        evidence=evidence,
        fix="restore chat_template.jinja or tokenizer_config.json from its source",
        code="CRT-1188",
    )


def checked(messages: Sequence[Message], system: str | None) -> list[dict[str, Any]]:
    """Return the messages as fresh dicts with text contents, the system message in front."""
    kinds = [type(m).__name__ for m in messages]
    wrong = [i for i, m in enumerate(messages) if not isinstance(m, Mapping)]
    if wrong or not kinds:
        raise BadInput(
            what="a chat prompt was given",
            evidence=f"item {wrong[0]} is a {kinds[wrong[0]]}" if wrong else "it is empty",
            fix='give a list of objects such as {"role": "user", "content": "Hello"}',
            code="CRT-1080",
        )
    turns = [dict(m) for m in messages]
    for i, turn in enumerate(turns):
        role = turn.get("role")
        if not isinstance(role, str) or ROLE.fullmatch(role) is None:
            raise BadInput(
                what=f"message {i} has no usable role",
                evidence=f"role is {role!r}",
                fix="use system, user, assistant or tool",
                code="CRT-1085",
            )
        turn["content"] = text_of(turn.get("content"), i)
        # here, where a place is counted without the template's characters
        valid(turn["content"])
    if system is not None:
        valid(system)
        if any(t["role"] == "system" for t in turns):
            raise BadInput(
                what="a system prompt was given twice",
                evidence="one as an option and one among the messages",
                fix="give one of them",
                code="CRT-1083",
            )
        turns.insert(0, {"role": "system", "content": system})
    return turns


def text_of(content: Any, index: int) -> str:
    """Return a content as one string: parts of type text are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise BadInput(
                what=f"message {index} holds something that is not text",
                evidence=f"a content part of type {kind!r}",
                fix="send text only: this model has no image or audio input here",
                code="CRT-1081",
            )
        texts.append(text)
    return "".join(texts)


def mark_thought(content: str, marks: Mapping[str, str]) -> str:
    """Return an assistant's content with the tags of its own thought as control tokens.

    Templates look for them in the history; they are the first `<think>`, if the content starts
    with it, and the first `</think>`. All later ones are text.
    """
    opening, closing = marks.get("<think>"), marks.get("</think>")
    if opening is not None and content.lstrip().startswith("<think>"):
        content = content.replace("<think>", opening, 1)
    if closing is not None:
        content = content.replace("</think>", closing, 1)
    return content


def free_base(values: Any, count: int) -> int:
    """Return the first of `count` private characters that no string in `values` contains."""
    used = {ord(c) for text in strings(values) for c in text if ord(c) >= PRIVATE.start}
    step = max(count, 1)
    for base in range(PRIVATE.start, PRIVATE.stop - step, step):
        if used.isdisjoint(range(base, base + step)):
            return base
    raise BadInput(
        what="the messages cannot be told from the chat template",
        evidence="they use every range of private characters from U+100000 on",
        fix="remove private-use characters from the messages",
        code="CRT-1084",
    )


def strings(value: Any) -> Iterator[str]:
    """Yield every string inside nested messages, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from strings(item)


def split_marks(text: str, controls: Sequence[Control], base: int) -> list[str | Control]:
    """Return a rendered text as runs of plain text and the control tokens between them."""
    if not controls:
        return [text]
    runs = re.split(f"([{chr(base)}-{chr(base + len(controls) - 1)}])", text)
    # odd entries are what the group matched
    parts = [controls[ord(r) - base] if i % 2 else r for i, r in enumerate(runs)]
    return [p for p in parts if p != ""]
