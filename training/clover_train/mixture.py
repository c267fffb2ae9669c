"""All kinds together, and conversations in the checkpoint's chat format."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from clover_train import tasks_chat, tasks_code, tasks_numbers, tasks_records, tasks_words
from clover_train.task import Kind, Sample

KINDS: tuple[Kind, ...] = (
    *tasks_numbers.KINDS,
    *tasks_words.KINDS,
    *tasks_records.KINDS,
    *tasks_code.KINDS,
    *tasks_chat.KINDS,
)
SYSTEM = "You are a helpful assistant."
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n<think>\\n' }}"
    "{% if not (enable_thinking is defined and enable_thinking) %}"
    "{{ '\\n</think>\\n\\n' }}"
    "{% endif %}{% endif %}"
)


@dataclass(frozen=True)
class Chat:
    """A prompt up to where the model writes, and what it must write (without the end token)."""

    kind: str
    prompt: str
    response: str


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def chat(sample: Sample, think: bool = False, before: str = "") -> Chat:
    """Write one exchange as the chat template does; `before` holds earlier turns."""
    prompt = f"{before}{turn('user', sample.prompt)}<|im_start|>assistant\n<think>\n"
    if think:
        return Chat(sample.kind, prompt, f"{sample.thought}\n</think>\n\n{sample.answer}")
    return Chat(sample.kind, f"{prompt}\n</think>\n\n", sample.answer)


def draw(rng: Random, held_out: bool = False, kinds: tuple[Kind, ...] = KINDS) -> Sample:
    """Draw a kind by share, then a sample of it."""
    kind = rng.choices(kinds, [k.share for k in kinds])[0]
    return kind.sample(rng, held_out)


def draw_chat(rng: Random, drills: float = 0.0) -> Chat:
    """Draw a training conversation: one in five thinks, few have earlier turns.

    With probability `drills` it is an exercise in copying instead.
    """
    if drills and rng.random() < drills:
        prompt, answer = tasks_words.drill(rng)
        return chat(Sample("echo", prompt, answer, ""))
    sample = draw(rng)
    before = ""
    chance = rng.random()
    if chance < 0.03:
        before = turn("system", SYSTEM)
    elif chance < 0.07:
        earlier = draw(rng)
        if len(earlier.prompt) + len(earlier.answer) < 160:
            before = turn("user", earlier.prompt) + turn("assistant", earlier.answer)
    return chat(sample, rng.random() < 0.2, before)
