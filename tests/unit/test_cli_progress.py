"""Progress: silent where it is quick, a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest

from clover_rt.cli.progress import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def run(progress, clock, seconds, total=10):
    """Tell `total` steps of loading, spread over this time."""
    for done in range(1, total + 1):
        clock.now += seconds / total
        progress.load(done, total, "layers.0.moe")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_a_quick_load_shows_nothing(clock, stream):
    run(Progress(stream, clock=clock), clock, 0.25)
    assert stream.getvalue() == ""


def test_a_long_load_prints_plain_lines_now_and_then(clock):
    stream = io.StringIO()
    run(Progress(stream, clock=clock), clock, 10.0)
    assert stream.getvalue().splitlines() == [
        "loading: 3 of 10",
        "loading: 5 of 10",
        "loading: 7 of 10",
        "loading: 9 of 10",
    ]


def test_a_terminal_gets_a_bar_that_vanishes(clock):
    stream = Terminal()
    run(Progress(stream, clock=clock), clock, 10.0)
    assert "loading" in stream.getvalue()
    assert "\x1b[2K" in stream.getvalue().rpartition("loading")[2]


def test_each_phase_is_timed_on_its_own(clock):
    stream = io.StringIO()
    progress = Progress(stream, clock=clock)
    run(progress, clock, 1.9)
    progress.prefill(64, 128)
    clock.now += 1.9
    progress.prefill(65, 128)
    assert stream.getvalue() == ""
    clock.now += 0.2
    progress.prefill(96, 128)
    assert stream.getvalue() == "reading the prompt: 96 of 128\n"


def test_each_kind_of_long_work_has_its_name(clock):
    stream = io.StringIO()
    progress = Progress(stream, clock=clock)
    for what in ("comparing layers.0.gdn", "compiling a kernel", "layers.0.moe"):
        for done in (0, 1):
            progress.load(done, 9, what)
            clock.now += 2
    assert stream.getvalue().splitlines() == [
        "comparing with the cpu: 1 of 9",
        "compiling: 1 of 9",
        "loading: 1 of 9",
    ]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_kernels_that_are_compiled_one_by_one_do_not_hide_what_they_are_part_of(clock, stream):
    progress = Progress(stream, clock=clock)
    for done in range(9):
        progress.load(done, 9, "comparing layers.0.gdn")
        progress.load(0, 1, "compiling a kernel")
        clock.now += 1
        progress.load(1, 1, "compiling")
    told = stream.getvalue()
    assert "compiling" not in told
    if stream.isatty():
        # one bar, drawn once for each step from the first that is late
        assert told.count("comparing with the cpu") == 9
    else:
        lines = [f"comparing with the cpu: {n} of 9" for n in (2, 4, 6, 8)]
        assert told.splitlines() == lines


def test_it_knows_whether_kernels_are_being_compiled(clock):
    for progress in (Progress(io.StringIO(), clock=clock), Progress(Terminal(), True, clock)):
        told = []
        for done, what in (
            (0, "layers.0.moe"),
            (0, "compiling a"),
            (1, "compiling b"),
            (2, "compiling"),
        ):
            progress.load(done, 2, what)
            told.append(progress.is_compiling)
        assert told == [False, True, True, False]
        progress.load(0, 2, "compiling a")
        progress.stop()
        assert not progress.is_compiling


def test_quiet_shows_nothing(clock):
    stream = Terminal()
    run(Progress(stream, quiet=True, clock=clock), clock, 100.0)
    assert stream.getvalue() == ""


def test_stopping_twice_changes_nothing(clock):
    stream = Terminal()
    progress = Progress(stream, clock=clock)
    progress.load(1, 10, "x")
    clock.now = 5.0
    progress.load(2, 10, "x")
    progress.stop()
    shown = stream.getvalue()
    progress.stop()
    assert stream.getvalue() == shown


def test_bytes_of_a_checkpoint_are_told_in_gigabytes(clock):
    stream = io.StringIO()
    progress = Progress(stream, clock=clock)
    for done in (1, 12_340_000_000, 69_320_000_000):
        progress.stored(done, 69_320_000_000, "quantising")
        clock.now += 3
    assert stream.getvalue() == "quantising: 12.34 GB of 69.32 GB\n"
