"""Chat templates are programs of strangers: hostile ones end soon, small, with one error."""

from __future__ import annotations

import resource

import golden
import pytest

from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.text import Template, Tokenizer

PROTO = Tokenizer.load(golden.PROTO)
HELLO = [{"role": "user", "content": "Hello"}]
MANY = "range(100000)"
DOUBLE = "{% set ns.x = ns.x ~ ns.x %}"


def peak_bytes() -> int:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


ENDLESS = {
    "nested loops": f"{{% for a in {MANY} %}}{{% for b in {MANY} %}}{{% endfor %}}{{% endfor %}}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}"
    "{% endif %}{% endmacro %}{{ f(100) }}",
    "a recursive loop": "{% for a in [1, 2] recursive %}"
    "{% if loop.depth0 < 90 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    "a text that doubles": "{% set ns = namespace(x='ab') %}" + DOUBLE * 60,
    "a captured text that doubles": "{% set x %}ab{% endset %}"
    + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "a list that doubles": "{% set ns = namespace(x=['ab']) %}"
    + "{% set ns.x = [ns.x, ns.x] %}" * 60
    + "{{ ns.x }}",
    "a list that adds itself": "{% set ns = namespace(x=['ab']) %}"
    + "{% set ns.x = ns.x + ns.x %}" * 60,
    "a product": "{{ 'ab' * 10000000000 }}",
    "a list's product": "{{ [1] * 10000000000 }}",
    "replacing": "{% set ns = namespace(x='aa') %}"
    + "{% set ns.x = ns.x.replace('a', 'aaaa') %}" * 60,
    "a replacing filter": "{% set ns = namespace(x='aa') %}"
    + "{% set ns.x = ns.x | replace('a', 'aaaa') %}" * 60,
    "joining": f"{{{{ ('x' * 100000).join({MANY} | map('string')) }}}}",
    "a joining filter": f"{{{{ {MANY} | join('x' * 100000) }}}}",
    "indenting": "{{ 'x' | indent(10000000000, true) }}",
    "long data in a loop": f"{{% for a in {MANY} %}}{'x' * 60_000}{{% endfor %}}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_template_is_stopped_before_it_fills_memory(source):
    template = Template(source, PROTO)
    before = peak_bytes()
    with pytest.raises(BadCheckpoint) as caught:
        template.encode(HELLO)
    assert caught.value.code == "CRT-1189"
    assert "too many steps" in caught.value.evidence
    assert peak_bytes() - before < 200e6


HOSTILE = {
    "a class": "{{ ''.__class__.__mro__ }}",
    "globals of a function": "{{ raise_exception.__globals__['json'] }}",
    "globals of a class": "{{ cycler.__init__.__globals__ }}",
    "a code object": "{{ self.__init__.__code__ }}",
    "a format that reads attributes": "{{ '{0.__class__}'.format(messages) }}",
    "a format with a width": "{{ '{:9999999999}'.format(1) }}",
    "a format by item": "{{ ''['format']('x') }}",
    "format_map": "{{ '{a}'.format_map({'a': 1}) }}",
    "a percent format with a width": "{{ '%9999999999d' % 1 }}",
    "a percent filter with a width": "{{ '%*d' | format(9999999999, 1) }}",
    "a power": "{{ 10 ** 10000000000 }}",
    "a large product": "{% set ns = namespace(x=10) %}"
    + "{% set ns.x = ns.x * ns.x %}" * 60
    + "{{ ns.x }}",
    "bytes": "{{ ''.encode() }}",
    "a number's methods": "{{ (5).to_bytes(9999999999) }}",
    "padding": "{{ 'x'.ljust(9999999999) }}",
    "changing the messages": "{{ messages.clear() }}",
    "changing a message": "{{ messages[0].update({'role': 'system'}) }}",
    "a long range": "{% for a in range(10000000000) %}{% endfor %}",
    "a huge indent of json": "{{ messages | tojson(indent=9999999999) }}",
    "long separators of json": "{{ messages | tojson(separators=('x' * 9999, ':')) }}",
    "a callback of json": "{{ messages | tojson(default=raise_exception) }}",
    "another file": "{% include '/etc/passwd' %}",
    "a macro without an end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_is_refused(source):
    with pytest.raises((BadInput, BadCheckpoint)) as caught:
        Template(source, PROTO).encode(HELLO)
    assert caught.value.code in ("CRT-1082", "CRT-1188", "CRT-1189")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' | center(9999999999) }}",
        "{{ 'x' | attr('__class__') }}",
        "{{ [1] | batch(9999999999, 0) | list }}",
        "{{ lipsum(n=9999999999) }}",
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
        "x" * (2**20 + 1),
    ],
    ids=["center", "attr", "batch", "lipsum", "parentheses", "nested blocks", "a long source"],
)
def test_what_templates_may_not_have_is_refused(source):
    with pytest.raises((BadInput, BadCheckpoint)) as caught:
        Template(source, PROTO).encode(HELLO)
    assert caught.value.code in ("CRT-1082", "CRT-1188")


def test_a_namespace_does_not_show_what_it_holds():
    source = "{% set a = namespace(x=1) %}" + "{% set a = namespace(x=a, y=a) %}" * 60
    assert Template(source + "{{ a }}", PROTO).render(HELLO) == "<namespace>"


def test_what_published_templates_use_still_works():
    source = """
{%- set ns = namespace(last=messages | length - 1, found=false) %}
{%- macro part(m, upper=false) %}{{ (m.content | upper) if upper else m.content }}{% endmacro %}
{%- for m in messages[::-1] %}
    {%- set i = messages | length - 1 - loop.index0 %}
    {%- if not ns.found and m.role == 'user' and not (m.content.startswith('<t>')) %}
        {%- set ns.found = true %}{% set ns.last = i %}
    {%- endif %}
{%- endfor %}
{{- ns.last }}|
{%- for m in messages if m.role != 'tool' %}
    {{- loop.index }}:{{ part(m) }}:{{ part(m, upper=true) }}
    {%- if loop.previtem is defined and loop.previtem.role == 'user' %}:after{% endif %}
    {%- if loop.nextitem is defined %}:{{ loop.nextitem.role }}{% endif %}
    {%- if not loop.last %};{% endif %}
{%- endfor %}|
{%- for k, v in {'a': 1, 'b': [2, 'c']} | items %}{{ k }}={{ v | tojson }},{% endfor %}
{{- 'x%s-%d' | format('y', 3) }}|{{ ['p', 'q'] | join('+') }}|{{ 'a-b'.split('-')[-1] }}
{{- ' z '.strip() ~ 1 ~ none }}|{{ 'ab' * 2 }}|{{ 2 ** 10 }}|
{{- {'a': {'b': 1}} | tojson(indent=1) }}
{%- macro twice() %}{{ caller('d') }}{{ caller('e') }}{% endmacro %}
{%- call(x) twice() %}{{ x }}{% endcall %}
{%- filter upper %}ab{{ 'c' }}{% endfilter %}
{%- for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}"""
    turns = [
        {"role": "user", "content": "a"},
        {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "b"},
    ]
    assert Template(source, PROTO).render(turns) == (
        '0|1:a:A:assistant;2:b:B:after|a=1,b=[2, "c"],xy-3|p+q|bz1None|abab|1024|'
        '{\n "a": {\n  "b": 1\n }\n}deABCuser'
    )


def test_a_conversation_of_a_thousand_long_turns_is_within_the_budget():
    turns = [{"role": "user", "content": "x" * 5000}] * 1000
    template = Template.load(golden.PROTO, PROTO)
    assert template.render(turns).count("<|im_start|>user") == 1000
