"""`clover-rt completion`: a shell's completion script, made from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

HELP = "print a shell completion script"
DESCRIPTION = """Print a completion script for a shell. bash: eval "$(clover-rt completion bash)" in
~/.bashrc; zsh: the same in ~/.zshrc, after compinit; fish: clover-rt completion fish | source in
config.fish."""
EXAMPLES = '  eval "$(clover-rt completion bash)"'
SHELLS = ("bash", "zsh", "fish")
FILES = ("FILE", "DIR", "DIR|NAME", "PATH")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its spellings, help, values to choose from, and if it takes a file or a value."""

    names: tuple[str, ...]
    help: str
    choices: tuple[str, ...]
    takes_file: bool
    takes_value: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One command: flags, and what its positional argument can be."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    choices: tuple[str, ...]
    takes_file: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def main(args: argparse.Namespace) -> int:
    """Print the script; return 0."""
    from clover_rt.cli import build_parser

    commands = list(read(build_parser()))
    make = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell]
    print(make(commands))
    return 0


def read(parser: argparse.ArgumentParser) -> Iterator[Command]:
    """Yield the commands of a parser."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {a.dest: a.help or "" for a in action._choices_actions}
        for name, command in action.choices.items():
            flags = tuple(flag(a) for a in command._actions if a.option_strings)
            free = [a for a in command._actions if not a.option_strings]
            choices = tuple(str(c) for a in free for c in a.choices or ())
            takes_file = any(a.metavar in FILES for a in free)
            yield Command(name, helps.get(name, ""), flags, choices, takes_file)


def flag(action: argparse.Action) -> Flag:
    """Return what a shell needs to know of a flag."""
    return Flag(
        tuple(action.option_strings),
        action.help or "",
        tuple(str(c) for c in action.choices or ()),
        action.metavar in FILES,
        action.nargs != 0,
    )


def bash(commands: list[Command]) -> str:
    """Return the bash script."""
    lines = [
        "_clover_rt() {",
        '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""',
        "    COMPREPLY=()",
        "    if ((COMP_CWORD == 1)); then",
        f'        words="--help {" ".join(c.name for c in commands)}"',
        '        COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "        return",
        "    fi",
        '    case "${COMP_WORDS[1]} $before" in',
    ]
    for c in commands:
        for f in c.flags:
            patterns = "|".join(f'"{c.name} {name}"' for name in f.names)
            if f.choices:
                reply = f'COMPREPLY=($(compgen -W "{" ".join(f.choices)}" -- "$word"))'
                lines.append(f"        {patterns}) {reply}; return ;;")
            elif f.takes_file:
                reply = 'COMPREPLY=($(compgen -f -- "$word"))'
                lines.append(f"        {patterns}) {reply}; return ;;")
            elif f.takes_value:
                lines.append(f"        {patterns}) return ;;")
    lines += ["    esac", '    case "${COMP_WORDS[1]}" in']
    for c in commands:
        words = " ".join((*(n for f in c.flags for n in f.names), *c.choices))
        files = ' $(compgen -f -- "$word")' if c.takes_file else ""
        reply = f'COMPREPLY=($(compgen -W "{words}" -- "$word"){files})'
        lines.append(f"        {c.name}) {reply} ;;")
    lines += ["    esac", "}", "complete -o filenames -F _clover_rt clover-rt"]
    return "\n".join(lines)


def zsh(commands: list[Command]) -> str:
    """Return the zsh script."""
    lines = ["#compdef clover-rt", "_clover_rt() {", "    local -a commands", "    commands=("]
    lines += [f"        '{c.name}:{_zsh(c.help)}'" for c in commands]
    lines += [
        "    )",
        "    if ((CURRENT == 2)); then",
        "        _describe command commands",
        "        return",
        "    fi",
        "    case $words[2] in",
    ]
    for c in commands:
        lines.append(f"        {c.name}) shift words; ((CURRENT--)); _arguments \\")
        for f in c.flags:
            value = ""
            if f.choices:
                value = f":value:({' '.join(f.choices)})"
            elif f.takes_file:
                value = ":file:_files"
            elif f.takes_value:
                value = ":value:"
            lines += [f"            '{n}[{_zsh(f.help)}]{value}' \\" for n in f.names]
        rest = f"({' '.join(c.choices)})" if c.choices else "_files" if c.takes_file else ""
        lines.append(f"            '*:argument:{rest}' ;;")
    lines += ["    esac", "}", "compdef _clover_rt clover-rt"]
    return "\n".join(lines)


def fish(commands: list[Command]) -> str:
    """Return the fish script."""
    top = "complete -c clover-rt -n __fish_use_subcommand -f"
    lines = [f"{top} -a {c.name} -d '{_fish(c.help)}'" for c in commands]
    for c in commands:
        here = f"complete -c clover-rt -n '__fish_seen_subcommand_from {c.name}'"
        if not c.takes_file:
            lines.append(f"{here} -f")
        if c.choices:
            lines.append(f"{here} -a '{' '.join(c.choices)}'")
        for f in c.flags:
            names = " ".join(
                f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in f.names
            )
            value = ""
            if f.choices:
                value = f" -x -a '{' '.join(f.choices)}'"
            elif f.takes_file:
                value = " -r -F"
            elif f.takes_value:
                value = " -x"
            lines.append(f"{here} {names}{value} -d '{_fish(f.help)}'")
    return "\n".join(lines)


def _zsh(text: str) -> str:
    for char in "\\[]:'":
        text = text.replace(char, "" if char == "'" else f"\\{char}")
    return text


def _fish(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
