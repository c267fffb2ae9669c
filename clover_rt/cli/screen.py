"""What a response looks like on the terminal, as JSON lines, and in the file of --debug-blocks."""

from __future__ import annotations

import argparse
import json
import sys
from typing import IO, TYPE_CHECKING, Any, TextIO

from clover_rt.cli import events
from clover_rt.cli.parser import DEFAULT_MODEL
from clover_rt.cli.progress import Progress
from clover_rt.errors import BadInput

if TYPE_CHECKING:
    from clover_rt.api import AnyEvent, EndEvent, PassEvent, Response
    from clover_rt.cli.frames import Vocabulary
    from clover_rt.cli.show import Show


class Screen:
    """Prints one response as the flags ask.

    tokenizer  None where the checkpoint has none: token ids are printed in place of text
    """

    def __init__(
        self,
        args: argparse.Namespace,
        out: TextIO,
        progress: Progress,
        tokenizer: Vocabulary | None,
    ) -> None:
        self._args = args
        self._out = out
        self._progress = progress
        self._has_text = tokenizer is not None
        self._show: Show | None = None
        if args.show:
            # what only --show needs would cost every command
            from clover_rt.cli.show import Show, can_draw

            if can_draw(out, sys.stderr):
                self._show = Show(out, sys.stderr, tokenizer)
        self._last = ""

    def start(self, response: Response, plan: dict[str, Any] | None) -> None:
        """Tell in JSON what will run, and the plan where it is asked for."""
        if self._args.json:
            print_line(events.start(response, self._args.model or DEFAULT_MODEL), self._out)
            if plan is not None:
                print_line(events.plan(plan), self._out)

    def show(self, response: Response) -> EndEvent:
        """Stream a response, its passes to --debug-blocks, and return its end."""
        from clover_rt.api import EndEvent, PassEvent, PrefillEvent

        name = self._args.debug_blocks
        log = open_log(name) if name is not None else None
        try:
            for event in response:
                if isinstance(event, PrefillEvent):
                    self._progress.prefill(event.done, event.total)
                else:
                    self._progress.stop()
                if isinstance(event, PassEvent) and log is not None:
                    log_pass(event, log, name)
                if self._args.json:
                    line = events.as_dict(event)
                    if line is not None:
                        print_line(line, self._out)
                else:
                    if self._show is not None:
                        self._show.see(event)
                    self._write(event)
                if isinstance(event, EndEvent):
                    return event
        finally:
            self._progress.stop()
            if log is not None:
                log.close()
            if self._show is not None:
                self._show.close()
        raise AssertionError("a response ended without an end event")

    def _write(self, event: AnyEvent) -> None:
        """Print what an event adds to the text; ids as --prompt-ids takes them."""
        from clover_rt.api import EndEvent, TextEvent, TokensEvent

        text = ""
        if isinstance(event, TextEvent):
            text = event.text
        elif isinstance(event, TokensEvent) and not self._has_text:
            text = ("," if self._last else "") + ",".join(map(str, event.ids))
        elif isinstance(event, EndEvent) and self._last and not self._last.endswith("\n"):
            text = "\n"
        if text:
            if self._show is not None:
                self._show.write(text)
            else:
                self._out.write(text)
                self._out.flush()
            self._last = text


def open_log(name: str) -> IO[bytes]:
    """Return the file of --debug-blocks, emptied; raises BadInput (CRT-1027)."""
    try:
        # unbuffered: what fails, fails where the file's name is known
        return open(name, "wb", buffering=0)
    except (OSError, ValueError) as error:
        raise unwritable(name, error) from error


def log_pass(event: PassEvent, log: IO[bytes], name: str) -> None:
    """Write a pass to --debug-blocks; raises BadInput (CRT-1027)."""
    try:
        log.write(encoded(events.denoising_pass(event)).encode())
    except OSError as error:
        raise unwritable(name, error) from error


def unwritable(name: str, error: Exception) -> BadInput:
    """Return the error for a file of --debug-blocks that cannot be written."""
    return BadInput(
        what=f"--debug-blocks {name} cannot be written",
        evidence=getattr(error, "strerror", None) or str(error),
        fix="name a file that you may write to, in a folder that exists and has room",
        code="CRT-1027",
    )


def print_line(line: dict[str, Any], file: TextIO) -> None:
    """Print one JSON line at once."""
    file.write(encoded(line))
    file.flush()


def encoded(line: dict[str, Any]) -> str:
    """Return a JSON line; ASCII only, so that no encoding can break it."""
    return json.dumps(line) + "\n"
