"""The suite is itself tested: each wrong backend is caught by a case of the class meant for it."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import pytest

from clover_rt.spec import Precision
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.catalog import catalog
from clover_rt_conformance.classes import CLASSES, name_of
from clover_rt_conformance.reference_device import ReferenceDevice
from clover_rt_conformance.report import Report, failure
from clover_rt_conformance.trial import Outcome, Result, attempt
from tests.meta.bugs import BUGS, Bug
from tests.meta.wrong_device import Call, fault, words

SEED = 0


@cache
def right() -> Bench:
    return Bench(ReferenceDevice)


@cache
def judged(bug: Bug) -> Result:
    return attempt(catalog()[bug.case], Bench(bug.make), Precision.EXACT, SEED)


def is_caught(bug: Bug) -> bool:
    """Is it caught by a case of its class, whose message names the class?"""
    result = judged(bug)
    told = failure(Report("wrong"), result)
    return result.outcome is Outcome.FAILED and bug.of in result.classes and name_of(bug.of) in told


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name.replace(" ", "-"))
def test_a_wrong_backend_is_caught_by_a_case_of_the_class_meant_for_it(bug: Bug) -> None:
    result = judged(bug)
    assert result.outcome is Outcome.FAILED, f"{bug.name}: {bug.case} was {result.outcome.value}"
    assert bug.of in catalog()[bug.case].classes
    assert is_caught(bug), failure(Report("wrong"), result)


@pytest.mark.parametrize("case", sorted({b.case for b in BUGS}))
def test_a_right_backend_passes_the_same_case(case: str) -> None:
    result = attempt(catalog()[case], right(), Precision.EXACT, SEED)
    assert result.outcome.is_right, failure(Report("right"), result)


def test_every_bug_made_is_caught() -> None:
    found = [b for b in BUGS if is_caught(b)]
    print(f"wrong backends: {len(BUGS)} made, {len(found)} caught")
    assert len({b.name for b in BUGS}) == len(BUGS)
    assert len(BUGS) >= 30
    assert found == list(BUGS)


def test_every_class_of_a_kernels_own_bugs_has_a_wrong_backend() -> None:
    # strides and alignment are the plan's; 2^31 needs more memory than a usual machine has
    elsewhere = {"K-01", "K-02", "K-21"}
    assert set(CLASSES) - {b.of for b in BUGS} == elsewhere


def rounds_to_16_bits(c: Call) -> None:
    c["y"][: c.rows] = c["y"][: c.rows].astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        ("model/clover_tiny/commit/layers.0.gdn", Precision.FAST),
        ("model/clover_tiny/preview/layers.3.attention", Precision.EXACT),
        ("model/clover_tiny/teacher-forced/short", Precision.FAST),
        ("model/clover_tiny/commit/short", Precision.EXACT),
    ],
)
def test_coarser_numbers_than_a_kernel_declares_show_in_whole_models(case, precision) -> None:
    wrong = Bench(fault("linear", rounds_to_16_bits))
    assert attempt(catalog()[case], wrong, precision).outcome is Outcome.FAILED
    assert attempt(catalog()[case], right(), precision).outcome is Outcome.NATIVE


@pytest.mark.full
def test_a_right_backend_passes_whole() -> None:
    trials = [(t, p) for t in catalog().values() for p in t.precisions if not t.is_full]
    found = [attempt(t, right(), p) for t, p in trials]
    wrong = [r for r in found if not r.outcome.is_right and r.outcome is not Outcome.NOT_RUN]
    assert not wrong, failure(Report("right"), wrong[0])
    assert sum(r.outcome is Outcome.NOT_RUN for r in found) == 1


def test_words_that_are_gone_are_an_error_and_not_a_catch() -> None:
    with pytest.raises(ValueError, match="has no 'no such words'"):
        words("rms_norm", ("no such words", ""))()
