"""Axes by name, signatures, cases and how answers are judged."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.ops.common import axes_of
from clover_rt.spec import (
    Case,
    Format,
    Mismatch,
    Precision,
    Signature,
    StepLayout,
    TableClass,
    Tolerance,
    compare,
    evaluate_dim,
    seed_of,
)
from clover_rt.spec.op import DYNAMIC, axis_names, show_dim


@pytest.mark.parametrize(
    "expression, want",
    [
        ("K", 16),
        ("2*G*K+H*V", 2 * 2 * 16 + 4 * 24),
        ("J-1", 3),
        ("(vocab+31)//32", 3),
        ("2*top+4", 132),
        ("1", 1),
    ],
)
def test_a_dimension_is_arithmetic_over_axis_names(expression, want):
    axes = axes_of(K=16, G=2, H=4, V=24, J=4, vocab=77, top=64)
    assert evaluate_dim(expression, axes) == want


def test_an_axis_that_is_not_given_is_named():
    with pytest.raises(KeyError, match="slots"):
        evaluate_dim("slots*K", {"K": 3})


def test_a_dynamic_axis_without_a_capacity_keeps_its_name():
    assert show_dim(evaluate_dim("T", {})) == "T"
    assert show_dim(evaluate_dim("T*R", {"R": 8})) == "8*T"
    assert show_dim(64) == "64"
    assert evaluate_dim("T", {"T": 32}) == 32
    assert set(axis_names("T*R+J-1")) == {"T", "R", "J"}


def test_a_static_signature_has_no_dynamic_axes_and_no_table_class():
    signature = Signature(
        "linear",
        TableClass.PREVIEW,
        Precision.EXACT,
        (("K", 64), ("N", 8), ("T", 512), ("W", 32)),
        (("x", "float32"),),
        (("w", Format.Q4, 32),),
        (("eps", 1e-6),),
        StepLayout(),
    )
    static = signature.static()
    assert dict(static.axes) == {"K": 64, "N": 8}
    assert not set(DYNAMIC) & set(dict(static.axes))
    for table in TableClass:
        for rows in (1, 2048):
            axes = (("K", 64), ("N", 8), ("T", rows), ("W", rows))
            other = Signature("linear", table, Precision.EXACT, axes, *_rest(signature))
            assert other.static() == static
    assert signature["N"] == 8
    assert signature.format("w") == (Format.Q4, 32)
    assert signature.attr("eps") == 1e-6
    assert signature.dtype("x") == np.float32
    assert signature.has("w") and signature.has("x") and not signature.has("residual")


def _rest(signature):
    return signature.dtypes, signature.formats, signature.attrs, signature.layout


CASE = Case("op/case", "op", {}, lambda rng: {"x": rng.random(3)})
LOOSE = Tolerance(0.1, 0.01, "for a test")


def judge(got, want, tolerance=LOOSE):
    return compare(CASE, {"y": np.asarray(got)}, {"y": np.asarray(want)}, tolerance)


def test_a_case_draws_the_same_inputs_for_the_same_id_and_seed():
    np.testing.assert_array_equal(CASE.inputs()["x"], CASE.inputs()["x"])
    assert (CASE.inputs(0)["x"] != CASE.inputs(1)["x"]).any()
    assert seed_of("a") != seed_of("b")


def test_a_bound_is_relative_to_the_value_and_to_the_largest_of_the_output():
    # atol 0.01 of the largest, 10, and rtol 0.1 of each value
    assert judge([10.0, 0.0], [10.0, 0.099]) == []
    assert judge([11.05, 0.0], [10.0, 0.0]) == []
    (worst,) = judge([10.0, 0.2], [10.0, 0.05])
    assert worst.operand == "y" and worst.index == (1,)
    assert worst.bound == pytest.approx(0.01 * 10 + 0.1 * 0.05)


def test_the_worst_element_of_each_operand_is_reported():
    (found,) = judge([[1.5, 0.0], [9.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]])
    assert found.index == (1, 0) and (found.got, found.want) == (9.0, 1.0)
    assert str(found).startswith("y[1, 0]: got 9, want 1, bound ")


@pytest.mark.parametrize("want", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_equal_to_themselves_alone(want):
    assert judge([want, 1.0], [want, 1.0]) == []
    for got in (0.0, np.nan, np.inf, -np.inf):
        if not np.array_equal(got, want, equal_nan=True):
            (found,) = judge([got, 1.0], [want, 1.0])
            assert found.index == (0,)


@pytest.mark.parametrize("got", [np.nan, np.inf, -np.inf])
def test_a_number_is_never_answered_by_nan_or_inf(got):
    (found,) = judge([1.0, got], [1.0, 1.0], Tolerance(100, 100, "wide"))
    assert found.index == (1,)


def test_integers_are_equal_or_wrong_whatever_the_tolerance():
    wide = Tolerance(100.0, 100.0, "wide")
    assert judge(np.int32([3, -1]), np.int32([3, -1]), wide) == []
    (found,) = judge(np.int32([3, 0]), np.int32([3, -1]), wide)
    assert found.index == (1,) and found.bound == 0


def test_another_shape_is_one_mismatch_that_names_both():
    (found,) = judge(np.zeros((2, 3)), np.zeros((3, 2)))
    assert found.note == "shape (2, 3), want (3, 2)"
    assert isinstance(found, Mismatch)


def test_an_empty_output_is_right():
    assert judge(np.zeros((0, 3)), np.zeros((0, 3))) == []
