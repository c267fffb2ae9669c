"""`run --show` on pseudo-terminals: the drawing comes and goes, the text stays what it was."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.terminal import Grid, Terminal

CODE = "import sys; from clover_rt.cli import main; sys.exit(main())"
COLUMNS, HEIGHT = 60, 12
# two blocks, the first in several passes
PROMPT = "Count from 23 to 49 by 2."
COUNT = "23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49"
# no stop comes before Ctrl-C does
LONG = ["--raw", "la " * 30, "--max-new-tokens", "3000", "--no-controls"]
FRAME_END = "\x1b8"


def start(*argv, **options):
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    return subprocess.Popen(
        [sys.executable, "-c", CODE, "run", *argv],
        stdin=subprocess.DEVNULL,
        env=env | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
        **options,
    )


def on_terminal(*argv, columns=COLUMNS):
    """Run on one terminal; return the exit code and all that was written to it."""
    terminal = Terminal(columns, HEIGHT)
    process = start(*argv, stdout=terminal.slave, stderr=terminal.slave)
    written = terminal.read(process)
    return process.returncode, written


def pictures(written, columns=COLUMNS):
    """Return the lines of the terminal after each frame, and at the end."""
    grid = Grid(columns, HEIGHT)
    out = []
    for piece in re.split(f"(?<={FRAME_END})", written):
        grid.feed(piece)
        out.append(grid.lines())
    return out


def masks(lines):
    return "\n".join(lines).count("▒▒")


@pytest.fixture(scope="module")
def shown():
    code, written = on_terminal(PROMPT, "--show", "-q")
    assert code == 0
    return written


def test_masks_appear_and_shrink_and_the_text_is_left(shown):
    *frames, end = pictures(shown)
    assert end == [COUNT]
    counts = [masks(lines) for lines in frames]
    # each block starts whole; from there every pass leaves fewer masks
    starts = [i for i, count in enumerate(counts) if count == 32]
    assert len(starts) == 2 and starts[0] == 0
    blocks = (counts[: starts[1]], counts[starts[1] :])
    assert max(map(len, blocks)) > 2
    for block in blocks:
        assert all(later < earlier for earlier, later in zip(block, block[1:], strict=False))


def test_a_block_is_drawn_below_the_text_of_those_before(shown):
    for lines in pictures(shown)[:-1]:
        block = next(i for i, line in enumerate(lines) if line.startswith("block "))
        assert "".join(lines[:block]) == COUNT[: len("".join(lines[:block]))]
    assert block > 0


def test_the_terminal_gets_its_wrapping_back_and_no_style_is_left(shown):
    assert shown.rindex("\x1b[?7h") > shown.rindex("\x1b[?7l")
    assert re.findall(r"\x1b\[[\d;]*m", shown)[-1] == "\x1b[0m"
    assert "\x1b[?25" not in shown, "the cursor was never hidden"


def test_a_narrow_terminal_ends_with_the_text_alone():
    code, written = on_terminal(PROMPT, "-q", "--show", columns=9)
    plain = Grid(9, HEIGHT)
    plain.feed(f"{COUNT}\n")
    assert (code, pictures(written, 9)[-1]) == (0, plain.lines())
    assert "▒▒" in written


def test_self_spec_draws_drafts_and_what_was_accepted():
    code, written = on_terminal(PROMPT, "--mode", "self-spec", "--show", "-q")
    *frames, end = pictures(written)
    assert (code, end) == (0, [COUNT])
    titles = [line for lines in frames for line in lines if line.startswith("round ")]
    assert titles[0] == "round 0: 15 drafts"
    assert re.fullmatch(r"round 0: \d+ of 15 drafts accepted.* > next token", titles[1])


def test_stdout_receives_the_same_bytes():
    out, err = Terminal(), Terminal()
    process = start(PROMPT, "--show", "-q", stdout=out.slave, stderr=err.slave)
    # its few bytes fit into the terminal's buffer until they are read
    drawn = err.read(process)
    text = out.read(process)
    assert "▒▒" in drawn
    assert text == f"{COUNT}\r\n"


def test_nothing_is_drawn_where_stdout_is_a_pipe():
    terminal = Terminal()
    process = start(PROMPT, "--show", "-q", stdout=subprocess.PIPE, stderr=terminal.slave)
    assert terminal.read(process) == ""
    assert process.stdout.read() == f"{COUNT}\n".encode()
    process.stdout.close()


def test_an_interrupt_removes_the_drawing():
    terminal = Terminal(COLUMNS, HEIGHT)
    process = start(*LONG, "--show", "-q", stdout=terminal.slave, stderr=terminal.slave)
    sent = []

    def interrupt(written):
        if not sent and written.count(FRAME_END) > 2:
            sent.append(process.send_signal(signal.SIGINT))

    written = terminal.read(process, interrupt)
    assert process.returncode == 130
    assert written.rindex("\x1b[?7h") > written.rindex("\x1b[?7l")
    end = pictures(written)[-1]
    assert masks(end) == 0
    assert not any(line.startswith("block ") for line in end)
