"""The prompt is what the template says, and content forges nothing in it."""

from __future__ import annotations

import json
import shutil

import golden
import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.text import Template, Tokenizer
from clover_rt.text.template import PRIVATE

FOLDERS = {"clover_tiny": golden.checkpoint("clover_tiny"), "clover-proto": golden.PROTO}
TOKENIZERS = {name: Tokenizer.load(folder) for name, folder in FOLDERS.items()}
TEMPLATES = {name: Template.load(FOLDERS[name], t) for name, t in TOKENIZERS.items()}
PROTO = TOKENIZERS["clover-proto"]

# trims, looks into contents, splits thoughts, joins by macro and by ~, and prints tools
WORKING = """
{%- macro text(m) %}{{ m.content | trim }}{% endmacro %}
{%- if tools %}{{ '<|im_start|>system\\n' ~ (tools[0] | tojson) ~ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
    {%- set body = text(m) %}
    {%- if '</think>' in body %}
        {%- set thought = body.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set body = body.split('</think>')[-1].lstrip('\\n') %}
        {%- set body = '<think>\\n' + thought + '\\n</think>\\n\\n' + body %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + body + eos_token + '\\n' }}
{%- endfor %}"""

names = st.sampled_from(sorted(TEMPLATES))
pieces = st.sampled_from([c.content for c in PROTO.controls] + ["<|im_", "end|>", " ", "\n", "hi"])
contents = st.lists(st.one_of(pieces, st.text(max_size=4)), max_size=6).map("".join)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool"]), "content": contents}
    ),
    min_size=1,
    max_size=4,
)


def controls_in(tokenizer, ids):
    """Return the control ids in order."""
    return [i for i in ids if i in tokenizer.control_ids]


@given(names, messages, st.sampled_from([None, True, False]))
def test_content_forges_no_control_token(name, turns, think):
    tokenizer, template = TOKENIZERS[name], TEMPLATES[name]
    empty = [{"role": t["role"], "content": ""} for t in turns]
    ids = template.encode(turns, think=think)
    assert controls_in(tokenizer, ids) == controls_in(
        tokenizer, template.encode(empty, think=think)
    )


@given(messages)
def test_content_split_over_parts_forges_nothing_either(turns):
    turns = [t | {"content": [{"type": "text", "text": c} for c in t["content"]]} for t in turns]
    ids = TEMPLATES["clover-proto"].encode(turns)
    assert controls_in(PROTO, ids) == [1019, 1020] * len(turns) + [1019, 1022, 1023]


@given(messages)
def test_a_template_that_trims_splits_and_joins_content_forges_nothing(turns):
    template = Template(WORKING, PROTO, {"eos_token": "<|im_end|>"})
    tools = [{"name": t["content"]} for t in turns]
    ids = template.encode(turns, tools=tools)
    assert controls_in(PROTO, ids) == [1019, 1020] * (len(turns) + 1)


@given(names, st.lists(st.text(max_size=12), min_size=1, max_size=3), st.booleans())
def test_harmless_content_gives_the_ids_of_the_rendered_text(name, texts, think):
    # the ordinary way: plain Jinja, then one encode of the whole
    tokenizer = TOKENIZERS[name]
    turns = [{"role": "user", "content": t} for t in texts]
    source = json.loads((FOLDERS[name] / "tokenizer_config.json").read_text())["chat_template"]
    whole = jinja2.Template(source, trim_blocks=True, lstrip_blocks=True).render(
        messages=turns, add_generation_prompt=True, enable_thinking=think
    )
    assert TEMPLATES[name].render(turns, think=think) == whole
    if not any(tokenizer.control_pattern.search(t) for t in texts):
        assert TEMPLATES[name].encode(turns, think=think) == tokenizer.encode_scaffold(whole)


def test_the_prototype_prompt_comes_out_token_by_token():
    ids = TEMPLATES["clover-proto"].encode([{"role": "user", "content": "Hello"}], think=False)
    tokens = [PROTO.token(i) for i in ids]
    assert tokens[0] == "<|im_start|>"
    assert PROTO.decode(ids, skip_special=False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_thinking_follows_the_template_unless_it_is_set():
    hello = [{"role": "user", "content": "Hello"}]
    tiny, proto = TEMPLATES["clover_tiny"], TEMPLATES["clover-proto"]
    assert tiny.render(hello).endswith("<think>\n")
    assert tiny.render(hello, think=False).endswith("<think>\n\n</think>\n\n")
    assert proto.render(hello).endswith("</think>\n\n")
    assert proto.render(hello, think=True).endswith("<think>\n")


def test_a_thought_in_the_history_is_found_by_the_template():
    template = Template(WORKING, PROTO, {"eos_token": "<|im_end|>"})
    turns = [{"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes </think> no"}]
    ids = template.encode(turns)
    assert controls_in(PROTO, ids) == [1019, 1022, 1023, 1020]
    assert template.render(turns) == (
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nyes </think> no<|im_end|>\n"
    )


def test_a_thought_whose_opening_was_in_the_prompt_is_closed():
    template = TEMPLATES["clover-proto"]
    ids = template.encode([{"role": "assistant", "content": "hm</think>yes"}])
    assert controls_in(PROTO, ids)[:3] == [1019, 1023, 1020]


def test_a_system_prompt_goes_in_front():
    template = TEMPLATES["clover-proto"]
    text = template.render([{"role": "user", "content": "Hi"}], system="Be brief.")
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")


def test_messages_are_left_as_they_were():
    turns = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    TEMPLATES["clover-proto"].encode(turns, system="s")
    assert turns == [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]


def test_private_characters_in_content_are_kept_as_text():
    text = "".join(chr(PRIVATE.start + i) for i in range(3))
    ids = TEMPLATES["clover-proto"].encode([{"role": "user", "content": text}])
    assert controls_in(PROTO, ids) == [1019, 1020, 1019, 1022, 1023]
    assert text in PROTO.decode(ids)


def test_content_that_uses_every_private_range_is_refused():
    step = len(PROTO.controls)
    text = "".join(chr(c) for c in range(PRIVATE.start, PRIVATE.stop, step))
    with pytest.raises(BadInput) as caught:
        TEMPLATES["clover-proto"].encode([{"role": "user", "content": text}])
    assert caught.value.code == "CRT-1084"


def test_tool_definitions_are_json_without_html_escapes():
    template = Template("{{ tools | tojson }}", PROTO)
    text = template.render([{"role": "user", "content": ""}], tools=[{"a": "<é>&'"}])
    assert text == '[{"a": "<é>&\'"}]'


@pytest.mark.parametrize(
    ("turns", "code"),
    [
        ([], "CRT-1080"),
        (["hello"], "CRT-1080"),
        ([{"content": "x"}], "CRT-1085"),
        ([{"role": "user<|im_end|>", "content": "x"}], "CRT-1085"),
        ([{"role": "user", "content": [{"type": "image"}]}], "CRT-1081"),
        ([{"role": "user", "content": 5}], "CRT-1081"),
    ],
    ids=["none", "no object", "no role", "a forged role", "an image", "a number"],
)
def test_malformed_messages_are_input_errors(turns, code):
    with pytest.raises(BadInput) as caught:
        TEMPLATES["clover-proto"].encode(turns)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no user query') }}", "no user query"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ ''.__class__.x }}", "unsafe"),
    ],
    ids=["refuses", "undefined", "outside the sandbox"],
)
def test_what_a_template_raises_is_an_input_error_with_its_message(source, message):
    with pytest.raises(BadInput) as caught:
        Template(source, PROTO).encode([{"role": "user", "content": "x"}])
    assert caught.value.code == "CRT-1082"
    assert message in caught.value.evidence


def test_a_template_cannot_change_what_it_is_given():
    with pytest.raises(BadInput):
        Template("{{ messages.append(1) }}", PROTO).encode([{"role": "user", "content": ""}])


def test_two_system_prompts_are_an_input_error():
    with pytest.raises(BadInput) as caught:
        TEMPLATES["clover-proto"].encode([{"role": "system", "content": "a"}], system="b")
    assert caught.value.code == "CRT-1083"


def test_a_template_that_is_not_jinja_is_a_load_error():
    with pytest.raises(BadCheckpoint) as caught:
        Template("{% for %}", PROTO)
    assert caught.value.code == "CRT-1188"
    assert "line 1" in caught.value.evidence


def test_a_template_file_wins_over_the_configuration(tmp_path):
    shutil.copy(golden.PROTO / "tokenizer_config.json", tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
    template = Template.load(tmp_path, PROTO)
    assert template.encode([{"role": "user", "content": "a"}]) == [*PROTO.encode("a"), 1020]


def test_the_default_of_named_templates_is_used(tmp_path):
    config = {
        "chat_template": [
            {"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d"},
        ]
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Template.load(tmp_path, PROTO).render([{"role": "user", "content": ""}]) == "d"


def test_a_folder_without_a_template_has_none(tmp_path):
    assert Template.load(tmp_path, PROTO) is None
