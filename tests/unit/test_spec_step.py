"""StepParams: every byte where the table of its layout says, little-endian."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.errors import CloverError
from clover_rt.spec import (
    Controls,
    Kind,
    Pass,
    Picks,
    Segment,
    StepLayout,
    StepParams,
    TableClass,
    Wanted,
    picks_shape,
)
from clover_rt.spec.step import MAX_BYTES, MAX_STOPS

SMALL = StepLayout(rows=16, segments=3, wanted=4, page_deltas=2, count_deltas=3)

# bytes of one item of each section, as documented
HEADER, SEGMENT, CONTROLS, WANTED, PAGE, COUNT, ADVANCE, WORD = 32, 32, 128, 32, 16, 16, 8, 4


def offsets(layout):
    """Return the byte offset of each section, added up from the documented sizes."""
    sizes = {
        "header": HEADER,
        "segments": SEGMENT * layout.segments,
        "controls": CONTROLS * layout.segments,
        "wanted": WANTED * layout.wanted,
        "page_deltas": PAGE * layout.page_deltas,
        "count_deltas": COUNT * layout.count_deltas,
        "advances": ADVANCE * layout.segments,
        "tokens": WORD * layout.rows,
        "row_segment": WORD * layout.rows,
    }
    out, at = {}, 0
    for name, size in sizes.items():
        out[name] = at
        at += size
    return out, at


def full_pass():
    """Return a pass that uses every section."""
    first = Controls(0.25, 0.5, 1.5, 6.0, 100, 200, 9.0, 300, 400, think_end=77, stops=(11, 12))
    return Pass(
        segments=(Segment(Kind.COMMIT, 2, 0, 3, 40), Segment(Kind.PREVIEW, 1, 3, 4, 7)),
        tokens=(5, 6, 7, 8, 9, 10, 11),
        controls=(first, Controls()),
        wanted=(Wanted(2, 41, True, 1, 99), Wanted(5, 3)),
        page_deltas=((2, 0, 15),),
        count_deltas=((2, 6, 1), (1, 8, -2)),
        advances=((0, 5),),
    )


@pytest.mark.parametrize("layout", [SMALL, StepLayout()], ids=["small", "default"])
def test_sections_lie_where_the_documented_sizes_add_up_to(layout):
    want, total = offsets(layout)
    assert {name: at for name, (at, _, _) in layout.sections.items()} == want
    assert layout.nbytes == total


def test_the_bytes_of_a_pass_are_those_of_the_table():
    params = StepParams(SMALL)
    params.write(full_pass())
    raw, (at, total) = params.buffer.tobytes(), offsets(SMALL)
    assert len(raw) == total

    def ints(section, index, count, size):
        return struct.unpack_from(f"<{count}i", raw, at[section] + index * size)

    assert ints("header", 0, 8, HEADER) == (1, 7, 2, 2, 1, 2, 1, 0)
    assert ints("segments", 0, 8, SEGMENT) == (0, 2, 0, 3, 40, 0, 0, 0)
    assert ints("segments", 1, 8, SEGMENT) == (1, 1, 3, 4, 7, 0, 0, 0)
    controls = struct.unpack_from("<4f2if3ii20ii", raw, at["controls"])
    want = (0.25, 0.5, 1.5, 6.0, 100, 200, 9.0, 300, 400, 77, 2, 11, 12, *[-1] * 18, 0)
    assert controls == want
    neutral = struct.unpack_from("<4f2if3ii20ii", raw, at["controls"] + CONTROLS)
    assert neutral[:11] == (0.0, 0.0, 1.0, 0.0, 8192, 8192, 0.0, 4096, 4096, -1, 0)
    assert ints("wanted", 0, 8, WANTED) == (2, 0, 41, 1, 1, 99, 0, 0)
    assert ints("wanted", 1, 8, WANTED) == (5, 1, 3, 0, -1, -1, 0, 0)
    assert ints("page_deltas", 0, 4, PAGE) == (2, 0, 15, 0)
    assert ints("count_deltas", 0, 4, COUNT) == (2, 6, 1, 0)
    assert ints("count_deltas", 1, 4, COUNT) == (1, 8, -2, 0)
    assert ints("advances", 0, 2, ADVANCE) == (0, 5)
    assert ints("tokens", 0, 7, WORD) == (5, 6, 7, 8, 9, 10, 11)
    assert ints("row_segment", 0, 7, WORD) == (0, 0, 0, 1, 1, 1, 1)


def test_what_is_written_is_read_back():
    params = StepParams(SMALL)
    work = full_pass()
    params.write(work)
    assert params.segments == list(work.segments)
    assert params.advances == [(0, 5)]
    assert params.rows == 7 and params.wanted_rows == 2
    assert params.positions().tolist() == [40, 41, 42, 7, 8, 9, 10]
    assert params.tokens.tolist() == list(work.tokens)
    params.drop_deltas()
    assert len(params.page_deltas) == len(params.count_deltas) == 0
    assert params.advances == [(0, 5)]


def test_views_are_live_over_the_buffer():
    buffer = np.zeros(SMALL.nbytes, np.uint8)
    params, reader = StepParams(SMALL, buffer), StepParams(SMALL, buffer)
    params.write(full_pass())
    assert reader.segments == list(full_pass().segments)


def test_a_shorter_table_hides_the_rows_of_the_one_before():
    params = StepParams(SMALL)
    params.write(full_pass())
    params.write(Pass((Segment(Kind.COMMIT, 0, 0, 1, 0),), (3,)))
    assert params.tokens.tolist() == [3]
    assert len(params.segments) == 1 and params.wanted_rows == 0 and params.advances == []


one = Segment(Kind.COMMIT, 0, 0, 1, 0)


@pytest.mark.parametrize(
    "work, words",
    [
        (Pass((Segment(Kind.COMMIT, 0, 0, 17, 0),), (0,) * 17), "17 rows"),
        (Pass(tuple(Segment(Kind.COMMIT, 0, i, 1, 0) for i in range(4)), (0,) * 4), "4 segments"),
        (Pass((one,), (0,), wanted=(Wanted(0, 1),) * 5), "5 wanted"),
        (Pass(page_deltas=((0, 0, 0),) * 3), "3 page_deltas"),
        (Pass(count_deltas=((0, 0, 1),) * 4), "4 count_deltas"),
        (Pass(advances=((0, 1),) * 4), "4 advances"),
    ],
    ids=["rows", "segments", "wanted", "page_deltas", "count_deltas", "advances"],
)
def test_a_table_over_a_capacity_is_refused_and_leaves_the_buffer_alone(work, words):
    params = StepParams(SMALL)
    params.write(full_pass())
    before = params.buffer.copy()
    with pytest.raises(CloverError, match=words) as error:
        params.write(work)
    assert error.value.code == "CRT-9011"
    np.testing.assert_array_equal(params.buffer, before)


def test_more_stop_ids_than_the_table_holds_are_refused_and_leave_the_buffer_alone():
    params = StepParams(SMALL)
    params.write(full_pass())
    before = params.buffer.copy()
    many = Controls(stops=tuple(range(MAX_STOPS + 1)))
    with pytest.raises(CloverError, match="21 stop ids") as error:
        params.write(Pass((one,), (0,), (many,)))
    assert error.value.code == "CRT-9012"
    np.testing.assert_array_equal(params.buffer, before)


def test_the_default_layout_fits_into_64_kib():
    assert StepLayout().nbytes <= 64 * 1024 == MAX_BYTES


def test_a_layout_over_64_kib_is_refused_with_both_numbers():
    layout = StepLayout(rows=9000)
    with pytest.raises(CloverError, match="65536") as error:
        StepParams(layout)
    assert error.value.code == "CRT-9010"
    assert str(layout.nbytes) in str(error.value)


C, P, V = Kind.COMMIT, Kind.PREVIEW, Kind.VERIFY


@pytest.mark.parametrize(
    "kinds, table",
    [
        ([], TableClass.COMMIT),
        ([C, C], TableClass.COMMIT),
        ([P], TableClass.PREVIEW),
        ([V, V], TableClass.VERIFY),
        ([C, P], TableClass.COMMIT_PREVIEW),
        ([P, C, P], TableClass.COMMIT_PREVIEW),
        ([C, V], TableClass.MIXED),
        ([P, V], TableClass.MIXED),
        ([V, P, C], TableClass.MIXED),
    ],
    ids=lambda x: "+".join(k.name for k in x) or "none" if isinstance(x, list) else None,
)
def test_a_table_has_the_narrowest_class_of_its_kinds(kinds, table):
    assert TableClass.of(kinds) is table
    assert all(table.has_preview for k in kinds if k is P)
    assert all(table.has_verify for k in kinds if k is V)


@given(st.integers(0, 5), st.integers(1, 8), st.booleans(), st.integers(0, 2**32 - 1))
def test_picks_survive_encoding(wanted, top, finite, seed):
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal((wanted, top + 3)).astype(np.float32)
    ids = rng.integers(0, 320, (wanted, top)).astype(np.int32)
    picks = Picks(finite, ids, floats[:, 3:], floats[:, 0], floats[:, 1], floats[:, 2])
    words = np.full(picks_shape(wanted + 2, top), 7, np.int32)
    picks.encode(words)
    back = Picks.decode(words, wanted, top)
    assert back.finite is finite
    for name in ("ids", "logits", "lse", "entropy", "probe"):
        np.testing.assert_array_equal(getattr(back, name), getattr(picks, name))
    assert (words[1 + wanted :] == 7).all(), "rows past the wanted ones are left alone"


def test_the_words_of_a_pick_are_ids_then_float_bits():
    words = np.zeros(picks_shape(1, 2), np.int32)
    row = struct.unpack("<8i", struct.pack("<2i6f", 9, 4, 2.5, -1.0, 3.25, 0.5, 7.0, 0.0))
    words[0, 0], words[1] = 1, row
    picks = Picks.decode(words, 1, 2)
    assert picks.finite
    assert picks.ids.tolist() == [[9, 4]]
    assert picks.logits.tolist() == [[2.5, -1.0]]
    assert (picks.lse[0], picks.entropy[0], picks.probe[0]) == (3.25, 0.5, 7.0)
