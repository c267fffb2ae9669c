"""Write docs/ops.md from the contracts themselves: python docs/ops_reference.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clover_rt.graph import flatten
from clover_rt.ops import HOT, OPS
from clover_rt.spec import Node, OpSpec, Role, TableClass, Tier

TARGET = Path(__file__).with_name("ops.md")
HEAD = """# Operations

Every operation of the graph, from its contract in `clover_rt/ops/`. The model is written in layer
ops and in `begin` and `advance`; a device that lacks a layer op gets its decomposition into
primitives. `T` is the rows of a pass and `W` its wanted rows: capacities at bind, lengths in a
pass; every other axis is fixed by the graph. Element types `edge` and `kv` are chosen by the plan's
precision. A result is right where |got - want| <= atol max|want| + rtol |want|, with the reference
in float64 as `want`."""
# every operand and preview part of a layer op in one table
WIDEST = TableClass.MIXED


def page() -> str:
    """Return the whole page as Markdown."""
    lines = [HEAD]
    for tier, title in ((Tier.LAYER, "Layer ops"), (Tier.PRIMITIVE, "Primitives")):
        specs = [spec for spec in OPS.values() if spec.tier is tier]
        lines += ["", f"## {title}", "", ", ".join(f"[{s.name}](#{s.name})" for s in specs)]
        for spec in specs:
            lines += section(spec)
    return "\n".join(lines) + "\n"


def section(spec: OpSpec) -> Iterator[str]:
    """Yield the lines of one op: formula, operands, attributes, parts, tolerances."""
    yield from ("", f"### {spec.name}", "", "```text", spec.doc.strip(), "```", "")
    yield f"Source: {spec.source}." + (" One of the three hot ops." if spec.name in HOT else "")
    yield from ("", "| operand | role | type | shape | holds |", "| --- | --- | --- | --- | --- |")
    for o in spec.operands:
        kind = "any weight format" if o.role is Role.WEIGHT else o.dtype.value
        role = o.role.value + (", optional" if o.optional else "")
        shape = "bytes" if o.role is Role.PARAMS else f"[{', '.join(o.shape)}]"
        yield f"| `{o.name}` | {role} | {kind} | `{shape}` | {o.doc} |"
    yield ""
    yield f"Attributes: {code(spec.attrs)}. Written in place: {code(spec.writes)}."
    if spec.decompose is not None:
        yield from ("", f"Parts: {' → '.join(parts(spec))}.")
    yield from ("", "| numerics | rtol | atol | reason |", "| --- | --- | --- | --- |")
    for numerics, t in spec.tolerance.items():
        yield f"| {numerics.value} | {t.rtol:g} | {t.atol:g} | {t.why} |"


def parts(spec: OpSpec) -> list[str]:
    """Return the primitives of a layer op's decomposition, in order."""
    case = next(iter(spec.cases()))
    names = {o.name: o.name for o in spec.operands}
    attrs = {**case.attrs, **({"top_p": 0.8} if "top_p" in spec.attrs else {})}
    node = Node(spec.name, spec.name, names, case.axes, attrs)
    return [part.op for part in flatten(node, WIDEST)]


def code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
