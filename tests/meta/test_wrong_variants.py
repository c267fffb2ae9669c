"""Wrong variants of ops and engine rules: the test that is meant for each fails on it."""

from __future__ import annotations

from functools import cache

import pytest

from clover_rt.ops import OPS
from tests.meta.mutate import mutated, swapped
from tests.meta.variants import CHECKS, VARIANTS, Variant, check_name, failure


@cache
def caught(variant: Variant) -> str:
    return variant.caught()


@pytest.mark.parametrize("check", CHECKS, ids=check_name)
def test_the_right_code_passes(check):
    assert failure(check) == ""


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name.replace(" ", "-"))
def test_a_wrong_variant_fails_the_test_that_is_meant_for_it(variant):
    assert caught(variant) != "", f"{variant.name}: {check_name(variant.check)} passed"


def test_every_variant_made_is_caught():
    found = [v for v in VARIANTS if caught(v)]
    print(f"wrong variants: {len(VARIANTS)} made, {len(found)} caught")
    assert len({v.name for v in VARIANTS}) == len(VARIANTS)
    assert len(found) == len(VARIANTS)


def test_a_variant_whose_words_are_gone_is_an_error_and_not_a_catch():
    with pytest.raises(ValueError, match="has no 'no such words'"):
        mutated(OPS["rms_norm"].reference, [("no such words", "")])


def test_the_right_code_is_back_after_a_variant():
    before = OPS["rms_norm"].reference
    with swapped("clover_rt.ops.rms_norm:reference", [("offset + ", "")]):
        assert OPS["rms_norm"].reference is not before
    assert OPS["rms_norm"].reference is before
