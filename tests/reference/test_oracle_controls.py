"""The control function gives the golden rows."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.spec import Controls
from tests.golden import runs, stop_ids
from tests.reference.oracle_controls import controlled, ramp, summary


def controls_of(config):
    return Controls(
        frequency=config["frequency_penalty"],
        presence=config["presence_penalty"],
        repetition=config["repetition_penalty"],
        length_penalty=config["dllm_length_penalty"],
        length_start=config["dllm_length_penalty_start"],
        length_window=config["dllm_length_penalty_window"],
        think_bias=config["dllm_think_end_bias"],
        think_start=config["dllm_think_end_start"],
        think_window=config["dllm_think_end_window"],
        think_end=config["dllm_think_end_token_id"],
        stops=stop_ids(config),
    )


@pytest.mark.parametrize("index", range(12))
def test_a_golden_control_row_comes_out(index):
    case = runs("clover_tiny")["controls"][index]
    controls = controls_of(case["generation_config"])
    row = np.asarray(case["row"])
    counts = np.bincount(np.asarray(case["committed"], int), minlength=len(row))
    is_open = controls.think_end not in case["committed"] + case["block"]
    got = controlled(row, case["position"], counts, [False] * len(row), controls, is_open)
    np.testing.assert_allclose(got, case["out"], atol=2e-9, rtol=0)


def test_a_ramp_without_a_window_is_a_step_after_its_start():
    assert [ramp(p, 4, 0) for p in (3, 4, 5)] == [0.0, 0.0, 1.0]
    assert [ramp(p, 4, 2) for p in (4, 5, 6, 9)] == [0.0, 0.5, 1.0, 1.0]


def test_the_summary_of_two_equal_logits_takes_the_lower_id():
    ids, logits, lse, entropy = summary(np.array([-np.inf, 1.0, 1.0]), 2)
    assert ids.tolist() == [1, 2]
    assert logits.tolist() == [1.0, 1.0]
    np.testing.assert_allclose([lse, entropy], [1 + np.log(2), np.log(2)])
