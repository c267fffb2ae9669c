"""Write docs/errors.md from the code itself: python docs/errors_reference.py

Finds every place that makes an error with a code: a call of a CloverError class or of
`plugins.Finding`, and helpers that are passed a code. Texts are the code's own; what it fills in is
shown in braces.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clover_rt import errors

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "clover_rt",
    "backends/cpu/clover_rt_cpu",
    "backends/cuda/clover_rt_cuda",
    "backends/rocm/clover_rt_rocm",
    "backends/vulkan/clover_rt_vulkan",
    "conformance/clover_rt_conformance",
)
# findings of a machine's health are not errors of a command
LEFT_OUT = ("clover_rt/doctor",)
TARGET = Path(__file__).with_name("errors.md")
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.CloverError)
}
HINTS = ("did_you_mean", "nearest")
GROUPS = {
    "1": "Input and files",
    "2": "The model and its graph",
    "3": "Backends and devices",
    "4": "The state of a sequence",
    "9": "Bugs in clover-rt",
}


@dataclass
class Site:
    """One place in the code that gives a code away.

    kind    the error class; "" for a problem that is collected with others first
    helper  the function that makes the error there, "" where the class is called
    what, found, fix  texts, "" where they are not written there
    """

    code: str
    file: str
    line: int
    kind: str
    helper: str
    what: str
    found: str
    fix: str


@dataclass
class Maker:
    """A helper that makes an error of a code it is given: its parameters, class and texts."""

    parameters: list[str]
    kind: str
    texts: list[str]

    def called(self, given: Iterable[str]) -> list[str]:
        """Return the texts with the parameters replaced by what it is called with."""
        values = dict(zip(self.parameters, given, strict=False))
        return [filled(text, values) for text in self.texts]


@dataclass
class Module:
    """One module's tree with what is needed to read texts in it.

    constants, makers  by the name that they have here, imported ones included
    """

    file: str
    tree: ast.Module
    constants: dict[str, str] = field(default_factory=dict)
    makers: dict[str, Maker] = field(default_factory=dict)

    def sites(self) -> Iterator[Site]:
        """Yield every place with a code."""
        for scope in ast.walk(self.tree):
            if not isinstance(scope, ast.FunctionDef | ast.Module):
                continue
            for call in calls_of(scope):
                yield from self.call_sites(call, scope)
        yield from self.table_sites()

    def find_makers(self) -> None:
        """Note the helpers of this module, and those that only pass a code on to one."""
        functions = [f for f in ast.walk(self.tree) if isinstance(f, ast.FunctionDef)]
        for function in functions * 2:
            names = [a.arg for a in function.args.args if a.arg != "self"]
            for call in calls_of(function):
                name, codes = name_of(call), {n.id for n in call.args if isinstance(n, ast.Name)}
                code = bound(call).get("code")
                if name in CLASSES and isinstance(code, ast.Name) and code.id in names:
                    texts = list(self.texts(bound(call), function))
                    self.makers.setdefault(function.name, Maker(names, name, texts))
                elif name in self.makers and codes & {"code"} & set(names):
                    inner = self.makers[name]
                    texts = inner.called(self.text(a, function) for a in call.args)
                    self.makers.setdefault(function.name, Maker(names, inner.kind, texts))

    def call_sites(self, call: ast.Call, scope: ast.AST) -> Iterator[Site]:
        """Yield the site of a call that has a code among its arguments."""
        name, line = name_of(call), call.lineno
        if name in CLASSES or name == "Finding":
            code = self.code(bound(call).get("code"))
            if code:
                kind = "BackendUnavailable" if name == "Finding" else name
                yield Site(code, self.file, line, kind, "", *self.texts(bound(call), scope))
            return
        for place, argument in enumerate(call.args):
            code = self.code(argument)
            if code:
                given = [self.text(a, scope) for a in call.args]
                # a problem of a file's field: noted now, raised with the others
                kind, told = "", ["a field cannot be used", *given[place + 1 : place + 3], "", ""]
                if name in self.makers:
                    kind, told = self.makers[name].kind, self.makers[name].called(given)
                yield Site(code, self.file, line, kind, name, *told[:3])

    def table_sites(self) -> Iterator[Site]:
        """Yield the codes of a module-level table; KINDS and FIXES have the same keys."""
        tables = {
            n.targets[0].id: n.value
            for n in self.tree.body
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Dict)
        }
        fixes = {
            key.value: self.text(value, self.tree)
            for key, value in pairs(tables.get("FIXES"))
            if isinstance(key, ast.Constant)
        }
        for table in tables.values():
            for key, value in pairs(table):
                code = self.code(value)
                if code and isinstance(key, ast.Constant):
                    what, fix = f"tensors are {key.value}", fixes.get(key.value, "")
                    yield Site(code, self.file, value.lineno, "", "", what, "their names", fix)

    def texts(self, arguments: Mapping[str, Any], scope: ast.AST) -> tuple[str, str, str]:
        """Return (what, found, fix) of an error's arguments."""
        what, found, fix = (arguments.get(k) for k in ("what", "evidence", "fix"))
        return self.text(what, scope), self.text(found, scope), self.text(fix, scope)

    def code(self, node: ast.expr | None) -> str:
        """Return the code that an expression is, or ""."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value if node.value.startswith("CRT-") else ""
        if isinstance(node, ast.IfExp):
            return self.code(node.orelse)
        if isinstance(node, ast.Name):
            return self.constants.get(node.id, "")
        return ""

    def text(self, node: ast.expr | None, scope: ast.AST) -> str:
        """Return a text as it is written, with what it fills in in braces."""
        if node is None:
            return ""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.text(part, scope) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            inner = node.value
            if name_of(inner) in HINTS or "did you mean" in ast.dump(inner):
                return "[did you mean ...?] "
            return f"{{{subject(inner)}}}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left, scope) + self.text(node.right, scope)
        if isinstance(node, ast.IfExp):
            texts = (self.text(node.body, scope), self.text(node.orelse, scope))
            return " / ".join(t for t in texts if t)
        if isinstance(node, ast.Name):
            for assigned in (scope, self.tree):
                values = [
                    other.value
                    for other in ast.walk(assigned)
                    if isinstance(other, ast.Assign) and other.lineno < node.lineno
                    for name in other.targets
                    if isinstance(name, ast.Name) and name.id == node.id
                ]
                if values:
                    return self.text(max(values, key=lambda v: v.lineno), self.tree)
        return f"{{{subject(node)}}}"


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the parameters of a helper replaced by what it was called with."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def subject(node: ast.expr) -> str:
    """Return the name that an expression is about."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            return "type" if node.attr == "__name__" else node.attr
        if isinstance(node, ast.Call):
            node = node.args[0] if node.args else node.func
        elif isinstance(node, ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.BoolOp):
            node = node.values[0]
        else:
            return "..."


def pairs(table: ast.Dict | None) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Return (key, value) of a written-out dict."""
    return iter(()) if table is None else zip(table.keys, table.values, strict=True)


def calls_of(scope: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a function or module, without those of the functions inside it."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.FunctionDef):
            stack += ast.iter_child_nodes(node)


def name_of(node: ast.AST) -> str:
    """Return the called name without what stands before the dot; "" for no call."""
    called = getattr(node, "func", None)
    return getattr(called, "id", None) or getattr(called, "attr", "")


def bound(call: ast.Call) -> dict[str, Any]:
    """Return the arguments of an error's call by name."""
    order = ("what", "evidence", "fix", "code")
    if name_of(call) == "Finding":
        order = ("code", "plugin", "stage", "what", "evidence", "fix")
    given = dict(zip(order, call.args, strict=False))
    return given | {k.arg: k.value for k in call.keywords if k.arg}


def modules() -> list[Module]:
    """Return every module of the packages; constants that hold a code are known everywhere."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            if not file.startswith(LEFT_OUT):
                found.append(Module(file, ast.parse(path.read_text(encoding="utf-8"))))
    by_name = {m.file.removesuffix(".py").replace("/", "."): m for m in found}
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.Assign):
                module.constants |= named_codes(node)
    for module in found:
        module.find_makers()
    for module in found:
        for node in module.tree.body:
            theirs = by_name.get(getattr(node, "module", None) or "")
            if isinstance(node, ast.ImportFrom) and theirs is not None:
                names = {a.name for a in node.names}
                for mine, other in (
                    (module.constants, theirs.constants),
                    (module.makers, theirs.makers),
                ):
                    mine |= {name: other[name] for name in names & other.keys()}
    return found


def named_codes(node: ast.Assign) -> dict[str, str]:
    """Return NAME -> code of an assignment, of tuples too."""
    target, value = node.targets[0], node.value
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    return {
        n.id: v.value
        for n, v in zip(names, values, strict=False)
        if isinstance(n, ast.Name)
        and isinstance(v, ast.Constant)
        and str(v.value).startswith("CRT-")
    }


def sites() -> list[Site]:
    """Return every place that gives a code away, by code and place."""
    found = [site for module in modules() for site in module.sites()]
    return sorted(found, key=lambda s: (s.code, s.file, s.line))


def unnamed() -> list[str]:
    """Return the places that make an error without a code of its own."""
    found = []
    for module in modules():
        for call in ast.walk(module.tree):
            if isinstance(call, ast.Call) and name_of(call) in CLASSES:
                code = bound(call).get("code")
                if code is None:
                    found.append(f"{module.file}:{call.lineno}")
    return found


def page() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Errors",
        "",
        "Every error has a stable code, says what was asked, what was found and what to do, and",
        "ends a command with an exit code: 2 input and files, 3 backends, devices and numbers that",
        "are not finite, 4 a bug. Names in braces stand for what is filled in.",
    ]
    found = sites()
    for digit, title in GROUPS.items():
        lines += ["", f"## {title}", "", "| code | what | found | what to do | exit |"]
        lines.append("| --- | --- | --- | --- | --- |")
        by_code: dict[str, list[Site]] = {}
        for site in found:
            if site.code[4] == digit:
                by_code.setdefault(site.code, []).append(site)
        rows = {code: row(code, group) for code, group in by_code.items()}
        own = [kind for kind in CLASSES.values() if kind.code[4] == digit]
        rows |= {kind.code: default(kind) for kind in own if kind.code not in rows}
        lines += [rows[code] for code in sorted(rows)]
    return "\n".join(lines) + "\n"


def row(code: str, group: Iterable[Site]) -> str:
    """Return the table row of a code: its texts, each once."""
    group = list(group)
    texts = [[s.what for s in group], [s.found for s in group], [s.fix for s in group]]
    told = " | ".join(cell("; ".join(dict.fromkeys(t for t in column if t))) for column in texts)
    kinds = {s.kind for s in group if s.kind} or {"BadCheckpoint"}
    codes = sorted({str(CLASSES[kind].exit_code) for kind in kinds})
    return f"| {code} | {told} | {', '.join(codes)} |"


def default(kind: type[errors.CloverError]) -> str:
    """Return the row of a class's own code: for plugins that give none."""
    doc = (kind.__doc__ or "").split("\n\n")[0]
    found = "raised by a plugin that gives no code of its own"
    return f"| {kind.code} | {cell(doc)} | {found} | as the message says | {kind.exit_code} |"


def cell(text: str) -> str:
    """Return text that cannot end its cell."""
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
