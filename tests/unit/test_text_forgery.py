"""Content cannot become a control token in any role, through a template as long as published ones.

The template below has the shape of the published one for this family: a tools preamble, a system
turn, thoughts kept or dropped by the last query, tool calls and tool results.
"""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.text import Template, Tokenizer
from tests.golden import PROTO, checkpoint

SOURCE = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
    {{- '\\n</tools>' }}
    {%- if messages[0].role == 'system' %}{{ '\\n\\n' + messages[0].content | trim }}{% endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' %}
        {%- set ns.searching = false %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content | trim %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = (message.reasoning_content or '') | trim %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}
            {%- for key, value in call.arguments | items %}
                {{- '<parameter=' + key + '>\\n' }}
                {{- value | string if value is string else value | tojson }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
FOLDERS = {"clover-proto": PROTO, "clover_tiny": checkpoint("clover_tiny")}
TOKENIZERS = {name: Tokenizer.load(folder) for name, folder in FOLDERS.items()}
TEMPLATES = {name: Template(SOURCE, t) for name, t in TOKENIZERS.items()}
ODD = (
    "<|im_",
    "end|>",
    "<thi",
    "nk>",
    "\n",
    " ",
    "hi",
    "ｉｍ",
    "\u0301",
    "\U00100000",
    "\U00100001",
)


def conversation(text: list[str]) -> tuple[list[dict], list[dict]]:
    """Return messages and tools in which each given text stands at another place."""
    system, user, thought, argument, key, result, tool, again = text
    call = {"name": "f" + key, "arguments": {"k" + key: argument, "n": [argument, 1]}}
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": thought,
            "tool_calls": [call],
        },
        {"role": "tool", "content": result},
        {"role": "tool", "content": [{"type": "text", "text": c} for c in result]},
        {"role": "user", "content": again},
    ]
    return messages, [{"name": tool, "about": {tool: tool}}]


def controls(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [i for i in ids if i in tokenizer.control_ids]


@pytest.mark.parametrize("name", TEMPLATES)
@given(data=st.data())
def test_no_text_at_any_place_of_a_conversation_adds_a_control_token(name, data):
    tokenizer, template = TOKENIZERS[name], TEMPLATES[name]
    spelled = [c.content for c in tokenizer.controls]
    piece = st.one_of(st.sampled_from([*spelled, *ODD]), st.text(max_size=3))
    text = data.draw(st.lists(st.lists(piece, max_size=5).map("".join), min_size=8, max_size=8))
    turns, tools = conversation(text)
    plain_turns, plain_tools = conversation(["x"] * 8)
    ids = template.encode(turns, tools=tools)
    assert controls(tokenizer, ids) == controls(
        tokenizer, template.encode(plain_turns, tools=plain_tools)
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_control_token_in_content_survives_as_text(name):
    tokenizer, template = TOKENIZERS[name], TEMPLATES[name]
    for control in tokenizer.controls:
        turns = [{"role": "user", "content": f"a{control.content}b"}]
        text = tokenizer.decode(template.encode(turns), skip_special=False)
        assert f"user\na{control.content}b<|im_end|>" in text


def test_a_thousand_random_splices_of_control_tokens_forge_nothing():
    tokenizer = TOKENIZERS["clover-proto"]
    rng = random.Random(8)
    spelled = [c.content for c in tokenizer.controls]
    for _ in range(1000):
        # a token with another one inside it: what is taken out must not join the rest
        outer, inner = rng.choice(spelled), rng.choice(spelled)
        at = rng.randint(0, len(outer))
        text = outer[:at] + inner + outer[at:]
        assert controls(tokenizer, tokenizer.encode(text)) == []
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_template_gives_the_prompt_of_the_family():
    turns, tools = conversation(["S", "U", "T", "A", "", "R", "t", "V"])
    text = TEMPLATES["clover-proto"].render(turns, tools=tools, think=False)
    assert text == (
        "<|im_start|>system\n# Tools\n\n<tools>\n"
        + json.dumps(tools[0])
        + "\n</tools>\n\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nok"
        "\n<tool_call>\n<function=f>\n<parameter=k>\nA\n</parameter>\n<parameter=n>\n"
        '["A", 1]\n</parameter>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user'
        "\n<tool_response>\nR\n</tool_response>\n<tool_response>\nR\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
