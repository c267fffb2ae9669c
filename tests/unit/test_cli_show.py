"""The drawing of `run --show`: what is in a frame, and that it leaves no trace on a terminal."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.api import BlockEvent, EndEvent, PassEvent, RoundEvent
from clover_rt.cli import build_parser
from clover_rt.cli.flags import check_flags
from clover_rt.cli.frames import Cell, Frame, Frames, by_confidence, visible, wrapped
from clover_rt.cli.show import FRAME_S, Show, can_draw
from clover_rt.engine import Fixed
from clover_rt.errors import BadInput
from tests.terminal import Grid

MASK = " ▒▒"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38|9[0-7])[;m]")


class Words:
    """A vocabulary of the words that it is made with; 0 is a special token."""

    special_ids = frozenset({0})

    def __init__(self, *words):
        self.words = words

    def bytes_of(self, id):
        return self.words[id].encode()


class Screen(io.StringIO):
    """Passes what is written on to a grid."""

    encoding = "utf-8"

    def __init__(self, grid):
        super().__init__()
        self.grid = grid

    def write(self, text):
        self.grid.feed(text)
        return super().write(text)


class Clock:
    now = 0.0

    def __init__(self):
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


WORDS = Words("<end>", "one", ",", " two", " three", "\x1b[2J", "中文")


def make_show(grid, clock=None, columns=None):
    """Return a Show whose streams are both this terminal, and the stream of the drawing.

    columns  what the terminal says to have
    """
    clock = clock or Clock()
    err = Screen(grid)
    show = Show(
        Screen(grid), err, WORDS, lambda: (columns or grid.columns, grid.height), clock, clock.sleep
    )
    return show, err


def denoising(index, tokens, *fixed):
    """Return a pass that fixed (row, confidence) pairs and left a block like this."""
    rows = tuple(Fixed(row, tokens[row], confidence) for row, confidence in fixed)
    return PassEvent(0, index, rows, tokens.count(None), 1.0, tuple(tokens))


FIRST = denoising(0, [1, None, None, 4], (0, 0.99), (3, 0.8))
SECOND = denoising(1, [1, 2, None, 4], (1, 0.3))
THIRD = denoising(2, [1, 2, 3, 4], (2, 0.96))


def frames_of(*events, encoding="utf-8", tokenizer=WORDS):
    frames = Frames(tokenizer, encoding)
    return [frame for event in events for frame in frames.of_pass(event)]


def test_a_block_starts_as_masks_and_each_pass_fills_some():
    shown = [[cell.text for cell in frame.cells] for frame in frames_of(FIRST, SECOND, THIRD)]
    assert shown == [
        [MASK, MASK, MASK, MASK],
        ["one", MASK, MASK, " three"],
        ["one", ",", MASK, " three"],
        ["one", ",", " two", " three"],
    ]


def test_the_title_counts_what_a_pass_fixed_and_what_is_masked():
    titles = [frame.title for frame in frames_of(FIRST, SECOND)]
    assert titles == [
        "block 0: 4 masks",
        "block 0, pass 0: 2 fixed, 2 masked",
        "block 0, pass 1: 1 fixed, 1 masked",
    ]


def test_a_token_keeps_the_style_of_its_confidence_and_is_bold_when_new():
    first, second = ([cell.style for cell in f.cells] for f in frames_of(FIRST, SECOND)[1:])
    assert (first[0], second[0]) == ("green bold", "green")
    assert (first[3], second[3]) == ("yellow underline bold", "yellow underline")
    assert second[1] == "red reverse bold"


@pytest.mark.parametrize(
    ("confidence", "colour"),
    [(1.0, "green"), (0.95, "green"), (0.949, "yellow"), (0.7, "yellow"), (0.699, "red")],
)
def test_the_colour_says_how_sure_a_token_is(confidence, colour):
    assert by_confidence(confidence).split()[0] == colour


def test_a_token_that_adds_no_text_is_a_dot():
    event = denoising(0, [1, 0], (0, 1.0), (1, 1.0))
    assert [cell.text for cell in frames_of(event)[1].cells] == ["one", "·"]


def test_ids_are_drawn_where_there_is_no_tokenizer():
    cells = frames_of(FIRST, tokenizer=None)[1].cells
    assert [cell.text for cell in cells] == [" 1", MASK, MASK, " 4"]


def test_a_terminal_without_the_signs_gets_ascii():
    event = denoising(0, [0, 6, None], (0, 1.0), (1, 1.0))
    frame = frames_of(event, encoding="ascii")[1]
    assert [cell.text for cell in frame.cells] == ["~", "\\u4e2d\\u6587", " __"]


def test_a_draft_is_drawn_and_then_judged():
    event = RoundEvent(3, (1, 2, 3, 4, 2), 2, 5, (0.99, 0.8, 0.1), 1.0)
    draft, verdict = Frames(WORDS, "utf-8").of_round(event)
    assert draft.title == "round 3: 4 drafts"
    assert [cell.text for cell in draft.cells] == [",", " two", " three", ","]
    assert verdict.title == "round 3: 2 of 4 drafts accepted | 2 rejected > next token"
    assert [(cell.text, cell.style) for cell in verdict.cells] == [
        (",", "green"),
        (" two", "yellow underline"),
        (" | ", ""),
        (" three", "dim strike"),
        (",", "dim strike"),
        (" > ", ""),
        ("\\x1b[2J", "bold"),
    ]


def test_a_round_without_a_draft_is_its_pick():
    (frame,) = Frames(WORDS, "utf-8").of_round(RoundEvent(1, (2,), 0, 1, (), 1.0))
    assert frame == Frame(
        "round 1: 0 of 0 drafts accepted > next token", (Cell(" > "), Cell("one", "bold"))
    )


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" word", " word"),
        (b"a\nb", "a↵b"),
        (b"\t\r\x07\x00", "\\t\\r\\x07\\x00"),
        (b"\x1b[2J", "\\x1b[2J"),
        ("\x9b2J".encode(), "\\x9b2J"),
        ("\u202e\u200d\u2028".encode(), "\\u202e\\u200d\\u2028"),
        (b"\xe4\xb8", "\\xe4\\xb8"),
        ("中 é".encode(), "中 é"),
    ],
)
def test_a_token_shows_what_would_move_the_cursor(data, shown):
    assert visible(data, "utf-8") == shown


def columns_of(text):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


@given(
    st.lists(st.text("ab 中文ー", max_size=30), max_size=12),
    st.integers(min_value=8, max_value=40),
)
def test_lines_are_no_wider_than_the_terminal_and_lose_nothing(texts, columns):
    lines = wrapped([Cell(text) for text in texts], columns)
    assert all(columns_of("".join(c.text for c in line)) <= columns for line in lines)
    assert "".join(cell.text for line in lines for cell in line) == "".join(texts)


def test_the_drawing_is_below_the_text_and_gone_before_more_is_printed():
    grid = Grid(40, 10)
    show, _ = make_show(grid)
    show.write("zero,")
    show.see(FIRST)
    assert grid.lines() == [
        "zero,",
        "block 0, pass 0: 2 fixed, 2 masked",
        "one ▒▒ ▒▒ three",
    ]
    show.write(" one")
    show.see(SECOND)
    assert grid.lines()[0] == "zero,"
    assert grid.lines()[2] == f"one,{MASK} three"
    show.see(BlockEvent(0, (FIRST, SECOND)))
    assert grid.lines() == ["zero, one"]


def test_a_run_that_breaks_off_leaves_its_text_and_no_drawing():
    grid = Grid(40, 10)
    show, _ = make_show(grid)
    show.see(FIRST)
    show.write("one")
    show.close()
    assert grid.lines() == ["one"]


LONG = denoising(0, [6] * 40, *((row, 0.9) for row in range(40)))
TEXTS = st.text("abc ,\n中文é", min_size=1, max_size=45)
DRAFT = RoundEvent(0, (1, 2, 3, 4, 2), 2, 5, (0.99, 0.8, 0.1), 1.0)
SEEN = st.sampled_from([FIRST, LONG, DRAFT, BlockEvent(0, ())])


@given(
    st.lists(TEXTS | SEEN, max_size=10),
    st.integers(min_value=8, max_value=24),
    st.integers(min_value=1, max_value=6),
)
def test_whatever_was_drawn_the_terminal_ends_as_without(steps, columns, height):
    plain, grid = Grid(columns, height), Grid(columns, height)
    show, _ = make_show(grid)
    for step in steps:
        if isinstance(step, str):
            show.write(step)
            plain.feed(step)
        else:
            show.see(step)
    show.see(EndEvent((), "stop"))
    assert grid.lines() == plain.lines()
    assert grid.wraps


@pytest.mark.parametrize(
    "text",
    ["abcdefghij", "中文中文中", "a中文中文中abcdefgh", "\n\tab", "abcdefghij\t", "abcdefghij" * 3],
)
@pytest.mark.parametrize("more", [", on", "\non"])
def test_text_that_fills_its_line_keeps_its_last_character(text, more):
    plain, grid = Grid(10, 5), Grid(10, 5)
    plain.feed(f"{text}{more}")
    show, _ = make_show(grid)
    show.write(text)
    show.see(FIRST)
    show.write(more)
    show.close()
    assert grid.lines() == plain.lines()


def test_a_terminal_narrower_than_it_says_takes_no_more_lines():
    grid = Grid(12, 4)
    show, _ = make_show(grid, columns=40)
    show.write("one, two")
    show.see(FIRST)
    assert len(grid.lines()) == 3
    show.close()
    assert grid.lines() == ["one, two"]


def test_a_frame_stays_long_enough_to_be_seen():
    clock = Clock()
    show, _ = make_show(Grid(), clock)
    show.see(FIRST)
    assert clock.slept == [FRAME_S]
    clock.now += FRAME_S / 4
    show.see(SECOND)
    assert clock.slept[1:] == [pytest.approx(FRAME_S * 3 / 4)]


def test_a_slow_model_does_not_wait_for_the_eye():
    clock = Clock()
    show, _ = make_show(Grid(), clock)
    show.see(FIRST)
    clock.slept.clear()
    for event in (SECOND, THIRD, BlockEvent(0, ())):
        clock.now += 2 * FRAME_S
        show.see(event)
    assert clock.slept == []


@pytest.mark.parametrize("value", ["1", None], ids=["set", "not set"])
def test_no_color_takes_the_colours_and_leaves_the_marks(monkeypatch, value):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    show, err = make_show(Grid())
    show.see(FIRST)
    show.see(SECOND)
    drawn = err.getvalue()
    assert bool(COLOUR.search(drawn)) == (value is None)
    # underlined: fairly sure; reverse: unsure
    assert re.search(r"\x1b\[(?:\d+;)*4[;m]", drawn)
    assert re.search(r"\x1b\[(?:\d+;)*7[;m]", drawn)


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("out", "err", "term", "drawn"),
    [
        (Tty(), Tty(), "xterm", True),
        (Tty(), Tty(), "dumb", False),
        (Tty(), Tty(), "", False),
        (io.StringIO(), Tty(), "xterm", False),
        (Tty(), io.StringIO(), "xterm", False),
    ],
    ids=["terminal", "dumb", "no name", "stdout a pipe", "stderr a pipe"],
)
def test_only_a_terminal_whose_cursor_moves_is_drawn_on(monkeypatch, out, err, term, drawn):
    monkeypatch.setenv("TERM", term)
    assert can_draw(out, err) is drawn


@pytest.mark.parametrize(
    ("flags", "beside"),
    [("--mode ar", "--mode ar"), ("--json", "--json, which draws nothing")],
)
def test_show_where_nothing_is_drawn_is_an_error(flags, beside):
    args = build_parser().parse_args(["run", "Hi", "--show", *flags.split()])
    with pytest.raises(BadInput) as raised:
        check_flags(args)
    assert raised.value.code == "CRT-1011"
    assert "--show" in raised.value.what
    assert beside in raised.value.evidence
