"""The Jinja environment of chat templates: templates are programs of strangers, kept on a budget.

Jinja's immutable sandbox keeps a template away from Python's internals. It does not keep it from
running for ever or filling memory, so here every render has a `Budget`. The template's syntax tree
is changed before it is compiled: loops pay for every item, and calls, filters, slices, literals,
joined strings and printed values pay for the size of what they give. An operation may be run only
if its result is no larger than its operands together; the few that multiply (`*`, `replace`,
`join`, `indent`, `%`) compute and pay the size first, and the other ones (`**` of large numbers,
`center`, `format` methods, ...) are not there. CPU time of the thread is the last bound.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import chain
from typing import Any, cast

import jinja2
from jinja2 import filters, nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

STEPS = 500_000
"""What a render may spend: a step is a loop's item, a value, or 64 characters of one."""
CALL = 8
"""Steps of a call, which takes longer than the others."""
SECONDS = 10.0
"""CPU time that a render may take; published templates take milliseconds."""
CHARS_PER_STEP = 64
MAX_SOURCE = 2**20
MAX_BITS = 4096
MAX_INDENT = 16

# fmt: off
STRING_METHODS = frozenset((
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper",
))
FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "groupby", "int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "reverse", "safe", "select", "selectattr", "sort", "string", "title", "trim",
    "unique", "upper", "urlencode", "wordcount",
)
# fmt: on
GLOBALS = ("range", "dict", "cycler", "joiner")


class Endless(jinja2.TemplateError):
    """A render that has spent its budget."""


class Budget:
    """What is left of a render's steps and CPU time."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self._until = time.thread_time() + SECONDS

    def spend(self, steps: int) -> None:
        """Take steps; raises Endless when there are none left."""
        self.left -= steps
        if self.left < 0:
            raise Endless("it takes too many steps, or makes too much text")
        if time.thread_time() > self._until:
            raise Endless(f"it takes more than {SECONDS:g} seconds")


_budget: ContextVar[Budget] = ContextVar("budget")


def spend(steps: int) -> None:
    """Take steps from the budget of the render that runs."""
    _budget.get().spend(steps)


def size(value: Any, limit: int) -> int:
    """Return the steps that a value is worth, with all that it holds; stops counting at `limit`."""
    total, stack = 0, [value]
    while stack and total <= limit:
        item = stack.pop()
        total += 1
        if isinstance(item, str):
            total += len(item) // CHARS_PER_STEP
        elif isinstance(item, Mapping):
            stack += chain(item.keys(), item.values())
        elif isinstance(item, list | tuple):
            stack += item
    return total


def sized(value: Any) -> Any:
    """Return a value after paying for its size."""
    spend(size(value, _budget.get().left))
    return value


@pass_context
def _sized(_: Context, value: Any) -> Any:
    # taking the context keeps the compiler from computing constants, for which nobody would pay
    return sized(value)


@pass_context
def _steps(_: Context, value: Any) -> Any:
    """Return something to loop over whose items are paid for."""
    if hasattr(value, "__len__"):
        spend(1 + len(value))
        return value
    return _counted(iter(value))


def _counted(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        spend(1)
        yield item


class _Limits(NodeTransformer):
    """Wraps the nodes whose work or result can grow; see the module's text."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter("_steps", cast(nodes.Expr, node.iter))
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        # template data is written without `finalize`, which is what pays for output
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        call = node.call
        self.generic_visit(node)
        # must stay a call; what a macro gives was paid for when it was written
        node.call = call
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_sized", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_sized", node) if isinstance(node.arg, nodes.Slice) else node

    def _value(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_sized", node)

    visit_Filter = visit_Call = visit_Concat = visit_List = visit_Dict = _value


def _filter(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class Plain(Namespace):
    """What `namespace()` gives; its text does not show what it holds, which may hold it."""

    def __repr__(self) -> str:
        return "<namespace>"


class Environment(ImmutableSandboxedEnvironment):
    """The environment that published chat templates are written for, within a budget."""

    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=_sized,
        )
        self.globals = {name: self.globals[name] for name in GLOBALS}
        self.globals |= {"namespace": Plain, "raise_exception": refuse}
        self.filters = {name: self.filters[name] for name in FILTERS}
        self.filters |= {"_sized": _sized, "_steps": _steps, "tojson": to_json, "join": join}
        self.filters |= {"replace": replace, "indent": indent, "format": percent}
        self.binop_table |= {"*": _times, "**": _power, "%": _modulo, "+": _plus}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """May a template read this? Of strings and numbers only what cannot multiply them."""
        if isinstance(obj, str):
            return attr in STRING_METHODS
        if isinstance(obj, int | float | bytes | type):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Leave `format` methods to `is_safe_attribute`, which refuses them."""
        return None

    # names that no keyword of a template's call can be
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805
        """Call something for a template, after paying for what multiplies."""
        spend(CALL)
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str) and __obj.__name__ == "replace":
            _pay_replace(text, *args[:2])
        elif isinstance(text, str) and __obj.__name__ == "join":
            args = (_pay_join(text, *args),)
        return super().call(__context, __obj, *args, **kwargs)

    def load(self, source: str) -> jinja2.Template:
        """Compile a template; raises jinja2.TemplateSyntaxError, or what deep nesting raises."""
        if len(source) > MAX_SOURCE:
            text = f"the template has {len(source)} characters, more than {MAX_SOURCE}"
            raise jinja2.TemplateSyntaxError(text, 1)
        tree: nodes.Template = _Limits().visit(self.parse(source))
        return self.from_string(tree)


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Return a template's text; raises Endless where it spends the budget, and what it raises.

    The budget grows with the variables: a long conversation may take a longer time.
    """
    given = size(list(variables.values()), 100 * STEPS)
    token = _budget.set(Budget(STEPS + 64 * given))
    try:
        return template.render(variables)
    finally:
        _budget.reset(token)


def refuse(message: str) -> None:
    """What templates call when a conversation makes no sense to them."""
    raise jinja2.TemplateError(message)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as models were trained on it: no HTML escapes, Unicode kept."""
    sized(value)
    if indent is not None and not 0 <= int(indent) <= MAX_INDENT:
        raise SecurityError(f"tojson with indent={indent}: at most {MAX_INDENT}")
    if separators is not None and sum(map(len, separators)) > MAX_INDENT:
        raise SecurityError("tojson with long separators")
    encoder = json.JSONEncoder(
        ensure_ascii=bool(ensure_ascii), indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    # an indented line is as long as it is deep
    return "".join(map(sized, encoder.iterencode(value)))


@pass_eval_context
def join(
    context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: Any = None
) -> str:
    """Return items joined, after paying for the separators."""
    joined: str = filters.do_join(context, _pay_join(str(d), value), d, attribute)
    return joined


@pass_eval_context
def replace(
    context: nodes.EvalContext, s: Any, old: str, new: str, count: int | None = None
) -> str:
    """Return a text with replacements, after paying for them."""
    text = str(s)
    _pay_replace(text, str(old), str(new))
    replaced: str = filters.do_replace(context, text, old, new, count)
    return replaced


def indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Return a text with indented lines, after paying for them."""
    step = len(width) if isinstance(width, str) else int(width)
    text = str(s)
    spend((text.count("\n") + 1) * max(step, 0) // CHARS_PER_STEP)
    return filters.do_indent(text, width, first, blank)


def percent(value: str, *args: Any, **kwargs: Any) -> str:
    """Return `value % args` without widths."""
    return str(_modulo(str(value), kwargs or args))


def _pay_replace(text: str, old: Any = "", new: Any = "") -> None:
    if isinstance(old, str) and isinstance(new, str):
        spend((len(text) + text.count(old) * len(new)) // CHARS_PER_STEP)


def _pay_join(separator: str, items: Iterable[Any]) -> list[Any]:
    held = list(_counted(iter(items)))
    spend(len(held) * len(separator) // CHARS_PER_STEP)
    sized(held)
    return held


def _times(a: Any, b: Any) -> Any:
    many, value = (a, b) if isinstance(a, int) else (b, a)
    if isinstance(many, int) and isinstance(value, str | list | tuple):
        spend(size(value, STEPS) * max(many, 0))
    elif isinstance(a, int) and isinstance(b, int) and a.bit_length() + b.bit_length() > MAX_BITS:
        raise SecurityError("a product is too large")
    return a * b


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() * abs(b) > MAX_BITS:
        raise SecurityError("a power is too large")
    return a**b


def _modulo(a: Any, b: Any) -> Any:
    if isinstance(a, str) and re.search(r"%[^a-zA-Z%]", a):
        raise SecurityError("formats with widths are not allowed")
    return sized(a % b)


def _plus(a: Any, b: Any) -> Any:
    return sized(a + b)
