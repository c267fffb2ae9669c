"""The plugin API as a flat table, and whether a change of it needs a new version.

After a deliberate change raise API in clover_rt/backend.py, add a line to "Changes" of
docs/plugins.md, and write the snapshot anew from the root of the repository:
python -m tests.unit.plugin_api
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clover_rt import backend, buffers, errors, hookspecs, spec
from clover_rt.backend import API
from clover_rt.ops import OPS

SNAPSHOT = Path(__file__).with_name("plugin_api.json")
# authors subclass these: the core calls what they override, so a new parameter breaks them
SUBCLASSED = (backend.Backend, backend.Device, backend.Kernel, backend.Buffer, buffers.BufferKernel)
REQUIRED = " (required)"
Surface = dict[str, str]


def surface() -> Surface:
    """Return {dotted name: what it is} of all that a plugin may use."""
    hooks = ("GROUP", "hookimpl", "clover_rt_backends")
    kinds = [n for n, v in vars(errors).items() if inspect.isclass(v)]
    out: Surface = {}
    for module, names in (
        (backend, [n for n in backend.__all__ if n != "API"]),
        (buffers, buffers.__all__),
        (hookspecs, hooks),
        (errors, kinds),
        (spec, spec.__all__),
    ):
        for name in names:
            out.update(described(f"{module.__name__}.{name}", getattr(module, name)))
    for name, op in OPS.items():
        out[f"ops.{name}"] = f"{op.tier.value}, attributes {', '.join(op.attrs) or 'none'}"
        for o in op.operands:
            optional = ", optional" if o.optional else ""
            shape = ", ".join(o.shape)
            text = f"{o.role.value} {o.dtype.value} [{shape}]{optional}"
            # a kernel that does not know of an operand ignores it, and is wrong
            out[f"ops.{name}.{o.name}"] = text + REQUIRED
    return out


def described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the lines of a class and its members, of a function and its parameters, or of data."""
    if inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isfunction(value):
        yield from _function(name, value, "function", strict=False)
    else:
        # instances have no stable text, so only plain values are shown
        shown = repr(value) if isinstance(value, str | int | tuple) else type(value).__name__
        yield name, shown


def _class(name: str, kind: type) -> Iterator[tuple[str, str]]:
    bases = ", ".join(b.__name__ for b in kind.__bases__)
    frozen = dataclasses.is_dataclass(kind)
    yield name, f"{'dataclass' if frozen else 'class'}({bases})"
    if issubclass(kind, enum.Enum):
        for member in kind:
            yield f"{name}.{member.name}", repr(member.value)
        return
    fields = {f.name: f for f in dataclasses.fields(kind)} if frozen else {}
    for field in fields.values():
        yield f"{name}.{field.name}", f"field: {field.type}{_default(field)}"
    for attribute, kind_of in inspect.get_annotations(kind).items():
        if attribute not in fields and not attribute.startswith("_"):
            given = f" = {vars(kind)[attribute]!r}" if attribute in vars(kind) else REQUIRED
            yield f"{name}.{attribute}", f"attribute: {kind_of}{given}"
    for attribute, value in vars(kind).items():
        written = attribute == "__init__" and not frozen
        if attribute.startswith("_") and not written and attribute != "__getitem__":
            continue
        yield from _member(f"{name}.{attribute}", value, issubclass(kind, SUBCLASSED))


def _member(name: str, value: Any, strict: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, property):
        yield name, "property"
    elif isinstance(value, staticmethod | classmethod):
        yield from _function(name, value.__func__, type(value).__name__, strict=False)
    elif inspect.isfunction(value):
        abstract = getattr(value, "__isabstractmethod__", False)
        yield from _function(name, value, "abstract method" if abstract else "method", strict)


def _function(name: str, value: Any, what: str, strict: bool) -> Iterator[tuple[str, str]]:
    signature = inspect.signature(value)
    must = REQUIRED if what == "abstract method" else ""
    yield name, f"{what} -> {signature.return_annotation}{must}"
    for i, p in enumerate(signature.parameters.values()):
        if p.name in ("self", "cls"):
            continue
        free = p.default is p.empty
        default = "" if free else f" = {_shown(p.default)}"
        required = REQUIRED if free or strict else ""
        yield f"{name}({p.name})", f"{i} {p.kind.description}: {p.annotation}{default}{required}"


def _default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {_shown(field.default)}"
    return REQUIRED if field.default_factory is dataclasses.MISSING else " = made anew"


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, enum.Enum) else repr(value)


def parent(name: str) -> str:
    """Return the name that a line belongs to: of a parameter its function, else up to a dot."""
    return name.split("(")[0] if "(" in name else name.rpartition(".")[0]


def breaking(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return what changed so that a plugin written for `old` may fail.

    A required part breaks only what there was before: those of a new function come with it.
    """
    gone = [f"{n}: removed" for n in old if n not in new]
    changed = [f"{n}: was {old[n]}, is {new[n]}" for n in old if n in new and old[n] != new[n]]
    return gone + changed + [f"{n}: added" for n in new if _demands(n, old, new)]


def adding(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return what was added that a plugin written for `old` need not know."""
    return [f"{n}: added" for n in new if n not in old and not _demands(n, old, new)]


def _demands(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    return name not in old and new[name].endswith(REQUIRED) and parent(name) in old


def problem(
    old: Mapping[str, str],
    old_api: tuple[int, int],
    new: Mapping[str, str],
    new_api: tuple[int, int],
) -> str:
    """Return "" where the version says enough about the change, else what is wrong."""
    if new_api < old_api:
        return f"the API went back from {old_api} to {new_api}"
    broken, added = breaking(old, new), adding(old, new)
    if broken and new_api[0] == old_api[0]:
        return f"the major version is still {new_api[0]}, but:\n  " + "\n  ".join(broken)
    if added and new_api == old_api:
        return f"the version is still {new_api}, but:\n  " + "\n  ".join(added)
    return ""


def read(path: Path = SNAPSHOT) -> tuple[Surface, tuple[int, int]]:
    """Return the committed surface and the version that it has."""
    data = json.loads(path.read_text(encoding="utf-8"))
    major, minor = data["api"]
    return data["surface"], (major, minor)


def write(path: Path = SNAPSHOT) -> str:
    """Write the surface as it is now and return ""; or write nothing and return why."""
    found = surface()
    if path.exists():
        wrong = problem(*read(path), found, API)
        if wrong:
            return wrong
    data = {"api": API, "surface": dict(sorted(found.items()))}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(write() or None)
