"""Where the prompt comes from: the argument, a file, a pipe, or token ids."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clover_rt.errors import BadInput

Prompt = str | tuple[int, ...]


def is_given(args: argparse.Namespace) -> bool:
    """Was a prompt named on the command line?"""
    return any(p is not None for p in (args.prompt, args.prompt_file, args.prompt_ids))


def read_prompt(args: argparse.Namespace) -> Prompt:
    """Return the prompt; without one on the command line it is read from a piped stdin.

    Raises BadInput: CRT-1012 there is none, CRT-1013 it is not UTF-8, CRT-1024 there are several,
    CRT-1026 the file cannot be read.
    """
    ways = {
        "PROMPT": args.prompt,
        "--prompt-file": args.prompt_file,
        "--prompt-ids": args.prompt_ids,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise BadInput(
            what="more than one prompt was given",
            evidence=f"{' and '.join(given)} were given together",
            fix="give one of them",
            code="CRT-1024",
        )
    if args.prompt_ids is not None:
        ids: tuple[int, ...] = args.prompt_ids
        return ids
    if args.prompt_file is not None:
        prompt, source = read_file(args.prompt_file), f"{args.prompt_file} is empty"
    elif args.prompt is not None and args.prompt != "-":
        prompt, source = args.prompt, "the argument is empty"
    elif sys.stdin is None:
        prompt, source = "", "no argument, and stdin is closed"
    elif args.prompt is None and sys.stdin.isatty():
        prompt, source = "", "no argument, and stdin is a terminal"
    else:
        prompt, source = read_stdin(), "stdin is empty"
    if not prompt:
        raise BadInput(
            what="there is no prompt",
            evidence=source,
            fix='give one, as in: clover-rt run "Hello"   or   echo Hello | clover-rt run',
            code="CRT-1012",
        )
    return prompt


def read_file(name: str) -> str:
    """Return the text of a file."""
    try:
        return Path(name).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise not_utf8(name, error) from error
    except (OSError, ValueError) as error:
        raise BadInput(
            what=f"the prompt file {name!r} cannot be read",
            evidence=getattr(error, "strerror", None) or str(error),
            fix="check that the file exists and that you may read it",
            code="CRT-1026",
        ) from error


def read_stdin() -> str:
    """Return all of stdin, as UTF-8 whatever the locale is."""
    raw = getattr(sys.stdin, "buffer", None)
    try:
        return str(sys.stdin.read()) if raw is None else str(raw.read().decode())
    except UnicodeDecodeError as error:
        raise not_utf8("stdin", error) from error


def not_utf8(source: str, error: UnicodeDecodeError) -> BadInput:
    """Return the error for bytes that are not UTF-8."""
    return BadInput(
        what=f"the prompt in {source} cannot be read",
        evidence=str(error),
        fix="give UTF-8 text",
        code="CRT-1013",
    )
