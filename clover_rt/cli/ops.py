"""`clover-rt ops`: the operations and their contracts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

HELP = "list operations and their contracts"
DESCRIPTION = """List the operations that a backend can implement; with a NAME, print one's whole
contract: formula, operands with shapes by axis name, state it updates, tolerances with reasons."""
EXAMPLES = """  clover-rt ops
  clover-rt ops expert_gemm"""
SCHEMA = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ops`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="an operation (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the list or a contract; return 0. Raises BadInput (CRT-1023) for an unknown name."""
    from clover_rt.api import operations

    found = operations(args.name)
    if args.json:
        import json

        print(json.dumps({"schema": SCHEMA, "ops": found}, indent=1))
    elif args.name is not None:
        print(contract(found[0]))
    else:
        print(table(found))
    return 0


def table(ops: Sequence[Mapping[str, Any]]) -> str:
    """Return one line an operation."""
    width = max(len(op["name"]) for op in ops)
    return "\n".join(
        f"{op['name']:{width}}  {op['tier']:9}  {'hot  ' if op['hot'] else '     '}"
        f"{title(op['doc'])}"
        for op in ops
    )


def title(doc: str) -> str:
    """Return the first line of a docstring, "" where Python runs without docstrings."""
    return doc.partition("\n")[0]


def contract(op: Mapping[str, Any]) -> str:
    """Return all of one operation's contract."""
    lines = [f"{op['name']} ({op['tier']})", "", op["doc"], "", f"source: {op['source']}"]
    lines.append(f"attributes: {', '.join(op['attributes']) or 'none'}")
    lines.append(f"updates in place: {', '.join(op['writes']) or 'nothing'}")
    lines += ["", "operands"]
    for o in op["operands"]:
        shape = f"[{', '.join(o['shape'])}]" if o["shape"] else ""
        kind = f"{o['role']}{', optional' if o['optional'] else ''}"
        lines.append(f"  {o['name']:12} {kind:18} {o['dtype']:8} {shape}  {o['doc']}")
    lines += ["", "tolerances against the float64 reference"]
    for numerics, t in op["tolerances"].items():
        lines.append(f"  {numerics:9} rtol {t['rtol']:g}, atol {t['atol']:g}: {t['why']}")
    return "\n".join(lines)
