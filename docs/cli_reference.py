"""Write docs/cli.md from the parser itself: python docs/cli_reference.py"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from clover_rt.cli import COMMANDS, build_parser

TARGET = Path(__file__).with_name("cli.md")


def page() -> str:
    """Return the whole page as Markdown."""
    parser = build_parser()
    codes, *rest = (parser.epilog or "").split("\n\n")
    lines = ["# Command line", "", parser.description or "", "", "```", codes, "```", "", *rest]
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        text = " ".join(COMMANDS[name].DESCRIPTION.split())
        lines += ["", f"## clover-rt {name}", "", text]
        rows = list(entries(command))
        if rows:
            lines += ["", "| argument | meaning |", "| --- | --- |", *rows]
        examples = getattr(COMMANDS[name], "EXAMPLES", "")
        if examples:
            lines += ["", "```sh", textwrap.dedent(examples), "```"]
    return "\n".join(lines) + "\n"


def entries(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield one table row an argument, in the order of --help."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        names = ", ".join(action.option_strings) or str(action.metavar)
        if action.option_strings and action.nargs != 0:
            value = action.metavar or "{" + ",".join(action.choices or ()) + "}"
            value = " ".join(value) if isinstance(value, tuple) else value
            names += f" {value}"
        yield f"| `{cell(names)}` | {cell(action.help or '')} |"


def cell(text: str) -> str:
    """Return text that cannot end its cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
