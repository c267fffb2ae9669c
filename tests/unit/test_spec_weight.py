"""Weight formats, byte for byte, against numbers worked out by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.errors import BadCheckpoint
from clover_rt.spec import Format, HostWeight, Weight, encode_q4, encode_q8

GROUPS = (32, 64, 128)


def q4(codes, scale, zero=None, group=32):
    """Return a q4 weight of one row from bytes, scales and zero points."""
    packed = np.array([codes], np.uint8)
    zeros = None if zero is None else np.array([zero], np.uint8)
    shape = (1, 2 * packed.shape[1])
    return Weight(Format.Q4, shape, packed, np.array([scale], np.float16), zeros, group)


def test_the_low_nibble_of_a_q4_byte_is_the_even_column():
    w = q4([0x21] + [0x88] * 15, [0.5])
    assert w.values()[0, :4].tolist() == [(1 - 8) * 0.5, (2 - 8) * 0.5, 0, 0]


def test_a_q4_weight_without_zero_points_is_centred_on_eight():
    assert q4([0xF0] * 16, [1.0]).values()[0, :2].tolist() == [-8, 7]


def test_a_q4_zero_point_belongs_to_its_group():
    w = q4([0x55] * 32, [2.0, 0.25], zero=[0, 15])
    values = w.values()[0]
    assert (values[:32] == 10).all()
    assert (values[32:] == -2.5).all()


def test_pieces_without_zero_points_beside_one_with_have_eights():
    pieces = [q4([0x55] * 16, [1.0]), q4([0x55] * 16, [1.0], zero=[3])]
    mixed = HostWeight("experts", Format.Q4, (2, 32), pieces, 32)
    assert mixed.whole().values().tolist() == [[5 - 8] * 32, [5 - 3] * 32]
    assert [part.zero.tolist() for _, part in mixed.slices(1)] == [[[8]], [[3]]]
    assert HostWeight("experts", Format.Q4, (1, 32), pieces[:1], 32).whole().zero is None


@pytest.mark.parametrize("group", GROUPS)
def test_a_scale_holds_up_to_the_last_column_of_its_group(group):
    w = q4([0x99] * group, [1.0, 3.0], group=group)
    assert w.values()[0, group - 2 : group + 2].tolist() == [1, 1, 3, 3]


def test_a_q8_code_is_signed_and_has_a_scale_for_32_columns():
    codes = np.zeros((1, 64), np.int8)
    codes[0, [0, 31, 32, 63]] = (-128, 127, 3, -3)
    scale = np.array([[0.5, 0.25]], np.float16)
    values = Weight(Format.Q8, (1, 64), codes, scale, None, 32).values()
    assert values[0, [0, 31, 32, 63]].tolist() == [-64, 63.5, 0.75, -0.75]


def test_symmetric_q4_gives_the_largest_value_the_code_zero():
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = (-4, 3.5, 0.5, -0.2)
    w = encode_q4(row, 32)
    # scale 4 / 8 = 0.5; codes 8 + value / 0.5: 0, 15, 9, and -0.4 rounded to 0
    assert w.scale is not None and w.scale.tolist() == [[0.5]]
    assert w.codes[0, :2].tolist() == [0xF0, 0x89]
    assert w.zero is None


def test_q4_with_zero_points_spans_from_the_least_to_the_largest_value():
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = (-1, 2, 0.2, 0)
    w = encode_q4(row, 32, zero_point=True)
    # scale 3 / 15 = 0.2, zero 5: codes 0, 15, 6, 5
    assert w.scale is not None and w.scale[0, 0] == np.float16(0.2)
    assert w.zero is not None and w.zero.tolist() == [[5]]
    assert w.codes[0, :2].tolist() == [0xF0, 0x56]


def test_q8_gives_the_largest_value_the_code_127():
    row = np.zeros((1, 32), np.float32)
    row[0, :3] = (127, -63.6, 0.4)
    w = encode_q8(row)
    assert w.codes[0, :3].tolist() == [127, -64, 0]
    assert w.scale is not None and w.scale.tolist() == [[1.0]]


def test_a_group_of_zeros_decodes_to_zeros():
    zeros = np.zeros((2, 64), np.float32)
    for w in (encode_q8(zeros), encode_q4(zeros, 64), encode_q4(zeros, 32, zero_point=True)):
        assert (w.values() == 0).all()


def test_bytes_are_counted_with_scales_and_zero_points():
    values = np.ones((4, 128), np.float32)
    assert encode_q8(values).nbytes == 4 * (128 + 2 * 4)
    assert encode_q4(values, 64).nbytes == 4 * (64 + 2 * 2)
    assert encode_q4(values, 32, zero_point=True).nbytes == 4 * (64 + 2 * 4 + 4)


@pytest.mark.parametrize("encode", [encode_q8, lambda v: encode_q4(v, 32)], ids=["q8", "q4"])
def test_packing_refuses_a_k_that_the_group_does_not_divide(encode):
    with pytest.raises(BadCheckpoint, match="K=48 is not a multiple of 32") as error:
        encode(np.zeros((2, 48), np.float32))
    assert error.value.code == "CRT-1111"


F16 = np.float16
CODES = np.zeros((1, 32), np.uint8)
SCALE = np.ones((1, 2), F16)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((Format.F32, (2, 3), np.zeros((2, 3), F16)), "codes are float16, not float32"),
        ((Format.F32, (2, 3), np.zeros((3, 2), np.float32)), r"codes have shape \[3, 2\]"),
        ((Format.Q4, (1, 64), CODES, SCALE, None, 16), "group size 16 is not one of"),
        ((Format.Q4, (1, 64), CODES, SCALE, None, 128), "K=64 is not a multiple of"),
        ((Format.Q4, (1, 128), CODES, SCALE, None, 64), r"not \[1, 64\]"),
        ((Format.Q4, (1, 64), CODES, None, None, 32), "a float16 scale"),
        ((Format.Q4, (1, 64), CODES, SCALE[:, :1], None, 32), r"shape \[1, 2\]"),
        ((Format.Q4, (1, 64), CODES, SCALE, np.zeros((1, 1), np.uint8), 32), "zero has shape"),
        (
            (Format.Q8, (1, 64), np.zeros((1, 64), np.int8), SCALE, np.zeros((1, 2), np.uint8), 32),
            "q8 has no zero point",
        ),
    ],
    ids=["type", "shape", "group", "k", "codes", "no-scale", "scale", "zero", "q8-zero"],
)
def test_a_weight_that_contradicts_its_format_is_refused(arguments, words):
    with pytest.raises(BadCheckpoint, match=words) as error:
        Weight(*arguments)
    assert error.value.code == "CRT-1110"


ROWS = st.lists(st.floats(-100, 100, width=32), min_size=64, max_size=64)


def half_step(w, values):
    """Return the error bound of every number: half a step, and the float16 rounding of scales.

    A float16 scale is off by 2^-11 of itself and a code counts up to 15 (q4) or 127 (q8) steps;
    below 2^-14 the scale is off by 2^-25 at most.
    """
    steps = 127 if w.format is Format.Q8 else 15
    scale = np.repeat(np.abs(w.scale.astype(np.float64)), w.group, axis=-1)
    rounding = np.maximum(scale * 2.0**-11, 2.0**-25)
    return scale / 2 + (steps + 1) * rounding + 1e-6 * np.abs(values)


@given(ROWS)
def test_q8_errs_by_half_a_step_at_most(row):
    values = np.array([row], np.float32)
    w = encode_q8(values)
    assert (np.abs(w.values() - values) <= half_step(w, values)).all()


@given(ROWS, st.sampled_from([32, 64]))
def test_q4_with_zero_points_errs_by_half_a_step_at_most(row, group):
    values = np.array([row], np.float32)
    w = encode_q4(values, group, zero_point=True)
    # the zero point is a whole number of steps, which may cut half a step at either end
    bound = half_step(w, values) + np.repeat(np.abs(w.scale.astype(float)), group, -1) / 2
    assert (np.abs(w.values() - values) <= bound).all()


@given(ROWS, st.sampled_from([32, 64]))
def test_symmetric_q4_errs_by_half_a_step_but_for_values_opposite_the_largest(row, group):
    values = np.array([row], np.float32)
    w = encode_q4(values, group)
    # codes reach 8 steps towards the largest value and 7 the other way
    bound = half_step(w, values) + np.repeat(np.abs(w.scale.astype(float)), group, -1) / 2
    assert (np.abs(w.values() - values) <= bound).all()


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_decoding_and_encoding_again_changes_nothing(seed, is_q8):
    values = np.random.default_rng(seed).standard_normal((3, 64)).astype(np.float32)

    def encode(numbers):
        return encode_q8(numbers) if is_q8 else encode_q4(numbers, 32)

    once = encode(values)
    twice = encode(once.values(np.float32))
    # the scale may move by a rounding of float16, the codes stay
    np.testing.assert_allclose(twice.values(), once.values(), rtol=2e-3)


def test_indexing_takes_experts_with_their_scales():
    values = np.random.default_rng(0).standard_normal((5, 4, 64)).astype(np.float32)
    w = encode_q4(values, 32, zero_point=True)
    assert w[2].shape == (4, 64)
    np.testing.assert_array_equal(w[2].values(), w.values()[2])
    np.testing.assert_array_equal(w[1:3].values(), w.values()[1:3])
    assert w.stacked().shape == (1, 5, 4, 64)
    np.testing.assert_array_equal(w.stacked().values()[0], w.values())


def bf16(values):
    array = np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)
    return Weight(Format.BF16, array.shape, array)


def test_slices_walk_axis_0_in_pieces_and_release_each():
    released = []
    pieces = [bf16(np.full((n, 2), n)) for n in (3, 1, 4)]
    host = HostWeight("w", Format.BF16, (8, 2), pieces, release=lambda part: released.append(part))
    seen = []
    for first, part in host.slices(2):
        assert len(released) == len(seen), "a part is released after its use, not before"
        seen.append((first, part.shape[0]))
    assert seen == [(0, 2), (2, 1), (3, 1), (4, 2), (6, 2)]
    assert [part.shape[0] for part in released] == [2, 1, 1, 2, 2]


def test_slices_of_quantised_pieces_join_to_the_whole():
    values = np.random.default_rng(1).standard_normal((6, 2, 32)).astype(np.float32)
    pieces = [encode_q4(values[i : i + 2], 32, zero_point=True) for i in (0, 2, 4)]
    host = HostWeight("w", Format.Q4, values.shape, pieces, 32)
    whole = host.whole()
    assert host.nbytes == whole.nbytes
    for first, part in host.slices(1):
        np.testing.assert_array_equal(part.values(), whole.values()[first : first + 1])


def test_a_weight_stored_whole_is_not_copied():
    weight = bf16([[1, 2], [3, 4]])
    host = HostWeight.of(weight, "w")
    assert host.whole() is weight
    assert np.shares_memory(host.stacked().whole().codes, weight.codes)
    assert host.stacked().shape == (1, 2, 2)
