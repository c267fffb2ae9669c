"""What a pass may touch, in which order, and what a failed one says."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.ops import OPS
from clover_rt.plan import Place
from clover_rt.spec import (
    PAGE_ROWS,
    Controls,
    Kind,
    Numerics,
    Pass,
    Role,
    Segment,
    Wanted,
)
from tests.golden import arrays, runs
from tests.toy import PRIMITIVES, ToyDevice
from tests.unit.plan_bench import (
    SLOT_PAGES,
    assert_same_bytes,
    bind_toy,
    changed,
    commit,
    golden_graph,
    host,
    model,
    native,
    pages,
    preview,
    states,
    verify,
    without,
)

GOLD = arrays("clover_tiny")
IDS = runs("clover_tiny")["prompts"]["short"]
N = len(IDS)
MASK = 318
DEVICES = {
    "native": lambda **options: bind_toy(native(), **options),
    "composed": lambda **options: bind_toy(ToyDevice("primitives", PRIMITIVES), **options),
    "most-on-host": lambda **options: bind_toy(
        ToyDevice("two", ["linear", "rms_norm"]), host(), **options
    ),
}


@pytest.fixture(params=list(DEVICES))
def make(request):
    return DEVICES[request.param]


@pytest.fixture
def plan(make):
    return make()


def test_an_empty_table_changes_no_byte_of_any_state(plan):
    plan.run(commit(IDS))
    plan.run(verify([5, 6, 7], 0, N))
    before = states(plan)
    picks = plan.run(Pass())
    assert picks.ids.shape == (0, 1)
    assert_same_bytes(states(plan), before)


def test_a_preview_changes_no_byte_of_any_state(plan):
    plan.run(commit(IDS))
    plan.run(verify([5, 6, 7], 0, N))
    before = states(plan)
    for rows in (1, 8, 32):
        plan.run(preview([MASK] * rows, 0, N, "all"))
    assert_same_bytes(states(plan), before)


def test_rows_past_the_table_of_a_pass_are_not_read():
    results = []
    for poison in (False, True):
        plan = bind_toy(ToyDevice("toy", PRIMITIVES, poison=poison))
        params = plan._staging
        if poison:
            # no index may be so large: one that is used shows
            params.buffer[params.header.nbytes :] = 0x7F
        for work in (commit(IDS, wanted=[N - 1]), preview([MASK] * 5, 0, N, "all")):
            picks = plan.run(work, 64)
        results.append((picks, states(plan)))
    (clean, clean_states), (got, got_states) = results
    assert got.finite
    for name in ("ids", "logits", "lse", "entropy"):
        np.testing.assert_array_equal(getattr(got, name), getattr(clean, name))
    assert_same_bytes(got_states, clean_states)


def test_rows_past_the_table_of_a_pass_are_not_written():
    plan = bind_toy(ToyDevice("toy", PRIMITIVES, poison=True))
    plan.run(commit(IDS))
    checked = set()
    for work in (preview([MASK] * 5, 0, N, "all"), verify([5, 6, 7], 0, N), commit([4, 5], 0, N)):
        plan._upload(work)
        for action in plan.program(work.table, len(work.tokens)).actions:
            rows_of = row_outputs(action)
            for t in rows_of:
                fill(plan, action, t, 0xFF)
            action.step()
            for t in rows_of:
                live = len(work.tokens) * (t.shape[0] // action.node.axes["T"])
                tail = read(plan, action, t)[live:]
                assert tail.size and (tail.view(np.uint8) == 0xFF).all(), action.node.name
                checked.add(action.node.op)
    assert {"linear", "router_topk", "group_rows", "expert_gemm", "block_scan"} <= checked


def row_outputs(action):
    """Return the outputs of an action whose first axis counts rows or pairs of the table."""
    outputs = [o for o in OPS[action.node.op].operands if o.role in (Role.OUTPUT, Role.INOUT)]
    by_row = {"T", "T*R"}
    return [
        t
        for o, t in zip(outputs, action.results, strict=True)
        if o.role is Role.OUTPUT and o.shape[0] in by_row
    ]


def fill(plan, action, t, byte):
    plan.devices[action.place].upload(t.buffer, t.offset, np.full(t.nbytes, byte, np.uint8))


def read(plan, action, t):
    out = np.empty(t.shape, t.dtype)
    plan.devices[action.place].download(t.buffer, t.offset, out)
    return out


def test_the_cache_is_read_up_to_the_position_and_no_further(plan):
    plan.run(commit(IDS))
    want = plan.run(preview([MASK] * 8, 0, N, "all"), 64)
    table = plan.state("page_table")[0]
    used = {table[p // PAGE_ROWS] * PAGE_ROWS + p % PAGE_ROWS for p in range(N)}
    for name in ("layers.3.k_pool", "layers.3.v_pool"):
        pool = plan.state(name)
        pool[[r for r in range(len(pool)) if r not in used]] = np.nan
        place = plan.state_places[name]
        at = plan.resident(name, place)
        plan.devices[place].upload(at.buffer, at.offset, pool)
    got = plan.run(preview([MASK] * 8, 0, N, "all"), 64)
    assert got.finite
    np.testing.assert_array_equal(got.logits, want.logits)


def test_advances_run_first_then_deltas_then_segments(make):
    drafts = IDS[3:7]
    controls = Controls(frequency=2.0, presence=1.0)

    def start():
        plan = make()
        plan.run(commit(IDS[:3]))
        plan.run(verify(drafts, 0, 3))
        return plan

    together = start()
    picks = together.run(
        Pass(
            (Segment(Kind.COMMIT, 0, 0, 1, 7), Segment(Kind.COMMIT, 1, 1, 1, 0)),
            (IDS[7], 9),
            (controls, controls),
            (Wanted(0, 1),),
            page_deltas=pages(1),
            count_deltas=((0, 300, 3), (0, IDS[3], 1)),
            advances=((0, 4),),
        ),
        64,
    )
    apart = start()
    apart.run(Pass(advances=((0, 4),)))
    apart.run(Pass(page_deltas=pages(1), count_deltas=((0, 300, 3), (0, IDS[3], 1))))
    alone = apart.run(
        Pass(
            (Segment(Kind.COMMIT, 0, 0, 1, 7), Segment(Kind.COMMIT, 1, 1, 1, 0)),
            (IDS[7], 9),
            (controls, controls),
            (Wanted(0, 1),),
        ),
        64,
    )
    np.testing.assert_array_equal(picks.logits, alone.logits)
    np.testing.assert_array_equal(picks.ids, alone.ids)
    assert_same_bytes(states(together), states(apart))
    assert together.state("counts")[0, 300] == 3
    # and the advance was needed: the row's logits are those of the golden prompt, controlled
    gold = GOLD["short.causal_logits"][7].astype(np.float64)
    gold[300] -= 3 * 2.0 + 1.0
    gold[IDS[3]] -= 2.0 + 1.0
    np.testing.assert_allclose(picks.logits[0], -np.sort(-gold)[:64], atol=4e-4)


def test_controls_suppressed_ids_and_counts_reach_the_picks(plan):
    suppressed = np.zeros(320, bool)
    best = int(np.argmax(GOLD["short.causal_logits"][-1]))
    suppressed[best] = True
    plan.load_request(0, np.zeros(320, np.int32), suppressed)
    picks = plan.run(commit(IDS, wanted=[N - 1]), 1)
    gold = GOLD["short.causal_logits"][-1].copy()
    gold[best] = -np.inf
    assert picks.ids[0, 0] == np.argmax(gold)
    assert picks.finite, "suppressed ids are no failure"


def names_of(states_, slot_of):
    return [n for n in states_ if n.rsplit(".", 1)[-1] in slot_of]


def assert_only_slot_changed(before, after, slot, kept=("ring", "S", "counts")):
    """Fail if a state of another slot, or one not named in `kept`, changed a byte."""
    for name, array in after.items():
        if name.rsplit(".", 1)[-1] in kept:
            rest = [s for s in range(len(array)) if s != slot]
            assert array[rest].tobytes() == before[name][rest].tobytes(), f"{name}, other slots"
        else:
            assert array.tobytes() == before[name].tobytes(), name


def busy(plan):
    """Fill all slots with states of their own; return a copy."""
    for slot in range(3):
        plan.load_request(slot, np.full(320, slot + 1, np.int32), np.arange(320) % (slot + 2) == 0)
        plan.run(commit(IDS[: 4 + slot], slot))
        plan.run(verify(IDS[4:7], slot, 4 + slot))
    return states(plan)


def test_resetting_a_slot_zeroes_ring_memory_and_counts_of_it_alone(plan):
    before = busy(plan)
    plan.reset_slot(1)
    after = states(plan)
    assert_only_slot_changed(before, after, 1)
    for name in names_of(after, ("ring", "S", "counts")):
        assert before[name][1].any()
        assert not after[name][1].any()


def test_copying_a_slot_changes_the_target_alone(plan):
    before = busy(plan)
    plan.copy_slot(2, 0)
    after = states(plan)
    assert_only_slot_changed(before, after, 0)
    for name in names_of(after, ("ring", "S", "counts")):
        np.testing.assert_array_equal(after[name][0], before[name][2])


def test_loading_a_request_sets_counts_and_mask_of_its_slot_alone(plan):
    before = busy(plan)
    counts = np.arange(320, dtype=np.int32)
    suppressed = np.zeros(320, bool)
    suppressed[[0, 31, 32, 319]] = True
    plan.load_request(1, counts, suppressed)
    after = states(plan)
    assert_only_slot_changed(before, after, 1, ("counts", "suppressed"))
    np.testing.assert_array_equal(after["counts"][1], counts)
    words = after["suppressed"][1]
    assert words.dtype == np.uint32 and len(words) == 10
    assert (words[0], words[1], words[9]) == (1 | 1 << 31, 1, 1 << 31)
    plan.load_counts(1, counts + 1)
    np.testing.assert_array_equal(plan.state("counts")[1], counts + 1)


def test_a_pass_writes_the_pages_of_its_own_slot_alone(plan):
    before = busy(plan)
    plan.run(commit(IDS[7:9], 1, 5))
    after = states(plan)
    own = set(range(SLOT_PAGES, 2 * SLOT_PAGES))
    for name in ("layers.3.k_pool", "layers.3.v_pool"):
        for page in range(len(after[name]) // PAGE_ROWS):
            rows = slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS)
            same = after[name][rows].tobytes() == before[name][rows].tobytes()
            assert same or page in own, f"{name} page {page}"
    for name in names_of(after, ("ring", "S")):
        for slot in (0, 2):
            np.testing.assert_array_equal(after[name][slot], before[name][slot])


def weight(name):
    _, weights = model("clover_tiny")
    return weights[name]


def planted(name, *experts):
    """Return the graph with NaN in a weight: in the first number of these first indices."""

    def plant(codes):
        for e in experts:
            codes[(e, *[0] * (codes.ndim - 1))] = np.nan

    return golden_graph(**{name.replace(".", "__"): changed(weight(name), plant)})


@pytest.mark.parametrize("kind", ["preview", "commit"])
def test_a_nan_weight_is_traced_to_layer_and_op(make, kind):
    graph = planted("layers.2.expert_down", *range(16))
    plan = make(graph=graph)
    work = commit(IDS, wanted=[N - 1]) if kind == "commit" else preview([MASK] * 8, 0, 0, "all")
    assert not plan.run(work).finite
    plan.reset_slot(0)
    where = plan.explain_nonfinite(work)
    is_composed = "layers.2.moe" in plan.placement.expanded
    op = "expert_gemm (layers.2.moe/experts)" if is_composed else "moe (layers.2.moe)"
    assert where == f"layer layers.2.moe, op {op}, row 0"


def test_the_row_of_a_failure_is_the_first_that_uses_the_weight():
    routes = GOLD["short.route.2.experts"].astype(int)
    first = {int(e): int(np.flatnonzero((routes == e).any(axis=1))[0]) for e in np.unique(routes)}
    expert, row = next((e, t) for e, t in first.items() if t == max(first.values()))
    assert row > 0
    plan = bind_toy(
        ToyDevice("primitives", PRIMITIVES), graph=planted("layers.2.expert_down", expert)
    )
    work = commit(IDS, wanted=[0])
    assert not plan.run(work).finite
    plan.reset_slot(0)
    assert plan.explain_nonfinite(work).endswith(f"(layers.2.moe/experts), row {row}")
    plan.reset_slot(0)
    assert plan.run(commit(IDS[:row], wanted=[0])).finite


def test_an_expert_outside_the_coreset_cannot_spoil_a_preview():
    out = np.flatnonzero(GOLD["short.preview_masks.kept"][3] == 0)
    assert len(out)
    plan = bind_toy(native(), graph=planted("layers.3.expert_down", *out.tolist()))
    plan.run(commit(IDS))
    work = preview(GOLD["short.preview_masks.block"], 0, N, "all")
    assert plan.run(work).finite
    assert plan.explain_nonfinite(work) == ""


def test_a_nan_in_the_head_is_traced_to_it(make):
    plan = make(graph=planted("head", 7))
    assert not plan.run(commit(IDS, wanted=[0])).finite
    plan.reset_slot(0)
    where = plan.explain_nonfinite(commit(IDS, wanted=[0]))
    assert where.startswith("layer pick, op ")
    assert where.endswith("the logits of a wanted row")
    assert plan.run(Pass((Segment(Kind.PREVIEW, 0, 0, 2, N),), (3, 3))).finite, "no row wanted"


def test_a_nan_in_the_embedding_is_traced_to_its_row(make):
    plan = make(graph=planted("embed", IDS[4]))
    assert not plan.run(preview(IDS, 0, 0)).finite
    first = IDS.index(IDS[4])
    assert plan.explain_nonfinite(preview(IDS, 0, 0)).endswith(f", row {first}")


def test_explaining_a_finite_pass_does_not_apply_its_deltas_again(make):
    plan = make()
    plan.run(commit(IDS))
    work = preview([MASK] * 4, 0, N, count_deltas=((0, 5, 1),))
    plan.run(work)
    before = states(plan)
    assert plan.explain_nonfinite(work) == ""
    assert_same_bytes(states(plan), before)


def test_every_step_declares_numerics_that_its_contract_has_a_tolerance_for():
    plan = bind_toy(ToyDevice("most", without("rope")), host())
    for c in plan.choices:
        assert c.numerics in OPS[c.op].tolerance
    assert {c.numerics for c in plan.choices} == {Numerics.F32}
    assert {c.place for c in plan.choices} == {Place.DEVICE, Place.HOST}
