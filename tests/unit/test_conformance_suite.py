"""Parts of the suite: its catalogue, its buffers, its resized cases, its report."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from clover_rt.backend import Tensor, Usage
from clover_rt.errors import BackendUnavailable, BadInput
from clover_rt.ops import HOT, OPS
from clover_rt.plan.case_run import typed
from clover_rt.spec import Precision, StepLayout
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.bound import Bound
from clover_rt_conformance.catalog import Choice, catalog, chosen, digest
from clover_rt_conformance.classes import CLASSES
from clover_rt_conformance.client import Inline, Workers
from clover_rt_conformance.device_trials import misplaced
from clover_rt_conformance.harness import run_case, signature, try_case
from clover_rt_conformance.reference_device import ReferenceDevice
from clover_rt_conformance.report import Report, text
from clover_rt_conformance.resized import moved, padded
from clover_rt_conformance.run import run_suite
from clover_rt_conformance.trial import Outcome, Result, attempt

EXACT = Precision.EXACT
ADVANCE = Choice(ops=("advance",), precisions=(EXACT,))


def case_of(op, name):
    return next(c for c in OPS[op].cases() if c.id == f"{op}/{name}")


def test_every_class_of_a_trial_is_explained_and_every_class_has_a_trial():
    assert {k for t in catalog().values() for k in t.classes} == set(CLASSES)


def test_every_op_has_trials_for_empty_tables_padding_and_repeats():
    for op, spec in OPS.items():
        own = {k for t in catalog().values() if t.op == op for k in t.classes}
        assert {"K-09", "K-33", "K-34", "K-32", "K-37"} <= own, op
        assert not spec.writes or "K-28" in own, op


def test_choosing_is_by_op_case_pattern_class_and_precision():
    def ids(**fields):
        return {t.id for t, _ in chosen(Choice(**fields))}

    assert ids(cases=("router_topk/ties",)) == {"router_topk/ties"}
    assert ids(cases=("advance/*",)) == ids(ops=("advance",))
    assert {t.op for t, _ in chosen(Choice(classes=("K-12",)))} == {
        "router_topk",
        "coreset",
        "confidence_topk",
        "pick",
    }
    assert {p for _, p in chosen(Choice(precisions=(EXACT,)))} == {EXACT}
    assert Choice(require=("hot", "rope")).required == (*HOT, "rope")
    with pytest.raises(BadInput, match="did you mean 'rope'") as caught:
        chosen(Choice(ops=("roep",)))
    assert caught.value.code == "CRT-1060"


def test_a_worker_that_cannot_be_started_is_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(BackendUnavailable, match="/nowhere/python") as caught:
        Workers("cpu")
    assert caught.value.code == "CRT-3091"


def test_a_trial_of_the_full_lane_waits_unless_it_is_named():
    trial = catalog()["attend/long/keys=131072"]
    assert Choice().waits(trial)
    assert not Choice(is_full=True).waits(trial)
    assert not Choice(cases=(trial.id,)).waits(trial)


def test_the_hash_of_the_cases_changes_with_the_cases():
    some = chosen(ADVANCE)
    assert digest(some) == digest(reversed(some))
    assert digest(some) != digest(some[1:])


def test_padding_keeps_the_live_rows_and_fills_the_rest_with_nan():
    case = case_of("linear", "f32/T=7,N=63,K=192")
    larger = padded(OPS["linear"], case)
    assert larger.axes["T"] == 12
    x = larger.inputs()["x"]
    np.testing.assert_array_equal(x[:7], case.inputs()["x"])
    assert x.shape == (12, 192) and np.isnan(x[7:]).all()


def test_a_step_table_moves_to_another_layout_whole():
    params = case_of("confidence_topk", "f32/top=8/verify8").inputs()["params"]
    other = moved(params, StepLayout(rows=40, segments=3, wanted=9, page_deltas=1, count_deltas=1))
    assert other.segments == params.segments
    for part in ("controls", "wanted", "tokens", "row_segment"):
        np.testing.assert_array_equal(getattr(other, part), getattr(params, part))
    with pytest.raises(AssertionError, match="wanted has more than 4 items"):
        moved(params, StepLayout(rows=40, segments=3, wanted=4, page_deltas=1, count_deltas=1))


@pytest.mark.parametrize("op", ["gdn", "attention", "moe", "embed", "pick"])
def test_a_layer_op_is_native_where_the_device_has_it_and_else_composed(op):
    case = next(iter(OPS[op].cases()))
    whole = ReferenceDevice()
    parts = ReferenceDevice(ops=[n for n, s in OPS.items() if s.reference is not None])
    for device, how in ((whole, "native"), (parts, "composed")):
        verdict = try_case(device, OPS[op], case, EXACT)
        assert (verdict.how, verdict.problems) == (how, [])


def test_a_composed_op_that_lacks_a_primitive_is_declined_with_its_name():
    device = ReferenceDevice("partial", ops=["embed"])
    result = attempt(catalog()["gdn/bf16/commit1"], Bench(lambda: device), EXACT)
    assert result.outcome is Outcome.DECLINED
    assert "block_scan: partial has no kernel for block_scan" in result.detail[0]


class WholeBuffers(ReferenceDevice):
    """A device that binds no part of a buffer, and wants 1024-byte alignment."""

    views = False
    alignment = 1024


def test_a_device_without_views_is_bound_to_whole_buffers():
    spec, device = OPS["linear"], WholeBuffers()
    case = case_of("linear", "f32/T=7,N=63,K=192")
    inputs = typed(spec, case.inputs(), device.dtypes(EXACT))
    with Bound(device, spec, case, EXACT, inputs) as bound:
        assert bound.lead == 0 and bound.guard == 1024
    assert run_case(device, spec, case, EXACT) == []


def test_operands_lie_between_guard_bands_at_the_devices_alignment():
    class Wide(ReferenceDevice):
        alignment = 512

    spec, device = OPS["linear"], Wide()
    case = case_of("linear", "f32/T=7,N=63,K=192")
    inputs = typed(spec, case.inputs(), device.dtypes(EXACT))
    with Bound(device, spec, case, EXACT, inputs) as bound:
        assert bound.lead == bound.guard == 512
        for name, array in bound.before.items():
            assert bound.buffers[name].nbytes >= array.nbytes + 1024


def test_memory_of_a_case_is_freed_also_where_binding_fails():
    class Counting(ReferenceDevice):
        alive = 0

        def alloc(self, nbytes, usage):
            self.alive += 1
            return super().alloc(nbytes, usage)

        def free(self, buffer):
            self.alive -= 1

    device = Counting()
    assert attempt(catalog()["rope/H=4,K=32,r=4/commit7"], Bench(lambda: device), EXACT)
    assert device.alive == 0
    device.kernels = {**device.kernels, "rope": object.__new__(type(device.kernels["rope"]))}
    result = attempt(catalog()["rope/H=4,K=32,r=4/commit7"], Bench(lambda: device), EXACT)
    assert result.outcome is Outcome.FAILED
    assert device.alive == 0
    assert device.alloc(1, Usage.EDGE).nbytes == 1


def bound_at(device, **where):
    """Return the operands of an output_gate over one buffer, some of them moved."""
    buffer = device.alloc(4096, Usage.EDGE)
    f32 = np.dtype(np.float32)
    places = {"o": 0, "gate": 1024, "y": 2048} | where
    operands = {n: Tensor(buffer, f32, (4, 64), at) for n, at in places.items()}
    case = case_of("output_gate", "N=64/T=1")
    sig = signature(OPS["output_gate"], case, ("float32", "float32"), EXACT)
    axes = dict(sig.axes) | {"T": 4}
    return dataclasses.replace(sig, axes=tuple(axes.items())), operands


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ({}, None),
        ({"gate": 1028}, "alignment is 64"),
        ({"y": 3584}, "of 4096 bytes"),
        ({"y": 64}, "overlaps y"),
    ],
)
def test_a_misplaced_operand_of_a_plan_is_seen(where, told):
    device = ReferenceDevice()
    found = [str(p) for p in misplaced(device, *bound_at(device, **where))]
    assert any(told in p for p in found) if told else not found


def test_an_operand_of_another_shape_is_seen():
    device = ReferenceDevice()
    sig, operands = bound_at(device)
    flat = Tensor(operands["y"].buffer, np.dtype(np.float32), (256,), 2048)
    (found,) = misplaced(device, sig, operands | {"y": flat})
    assert "has shape (256,), not (4, 64)" in str(found)


def report_of(device):
    bench = Bench(lambda: device)
    return run_suite(Report("reference"), Inline(bench), ADVANCE)


def test_two_reports_of_the_same_run_are_equal():
    first, second = (json.dumps(report_of(ReferenceDevice()).to_dict()) for _ in range(2))
    assert first == second


def test_the_report_counts_tells_tiers_and_passes():
    report = report_of(ReferenceDevice())
    data = report.to_dict()
    assert data["counts"]["total"] == data["counts"]["native"] == len(chosen(ADVANCE))
    assert data["tiers"]["tier 0: primitives"]["native"] == 1
    told = text(report)
    assert f"passed: {data['counts']['total']} total" in told
    assert data["ops"]["advance"]["largest_error"]["tolerance"]["why"] in told


def test_failures_come_smallest_first():
    def failed(id, size):
        return Result(id, "rope", "exact", ("K-04",), Outcome.FAILED, size)

    report = Report("mine", results=[failed("large", 9), failed("small", 1)])
    assert [r.id for r in report.failures] == ["small", "large"]
    assert not report.passed


def test_a_required_op_that_was_not_run_fails_the_run():
    report = report_of(ReferenceDevice())
    report.required = ("rope",)
    assert report.problems == ["required op rope was not run"]
    assert not report.passed


def test_a_result_crosses_a_process_whole():
    result = attempt(catalog()["advance/one"], Bench(ReferenceDevice), EXACT)
    again = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    assert dataclasses.asdict(again) == dataclasses.asdict(result)
