"""Where each node runs, why, and how often a kernel is asked, prepared and bound."""

from __future__ import annotations

from collections import Counter

import pytest

from clover_rt.errors import OutOfMemory, Unsupported
from clover_rt.graph import ValueKind
from clover_rt.ops import OPS
from clover_rt.plan import Place, explain
from clover_rt.spec import Kind, Pass, Segment, TableClass
from tests.toy import PRIMITIVES, ToyDevice
from tests.unit.plan_bench import (
    BUCKETS,
    bind_toy,
    commit,
    golden_graph,
    host,
    native,
    pages,
    preview,
    verify,
    without,
)


def choices(plan):
    return {c.node: c for c in plan.choices}


def run_every_class(plan, rows=8):
    """Run one pass of every class."""
    ids = [3] * rows
    for work in (commit(ids), preview(ids, 0, rows), verify(ids, 0, rows)):
        plan.run(work)
    kinds = ((Kind.COMMIT, Kind.PREVIEW), (Kind.COMMIT, Kind.PREVIEW, Kind.VERIFY))
    for table in kinds:
        segments = tuple(Segment(k, i, rows * i, rows, 0) for i, k in enumerate(table))
        deltas = tuple(d for slot in range(3) for d in pages(slot))
        plan.run(Pass(segments, tuple(ids * len(table)), page_deltas=deltas))


def test_a_device_with_every_op_runs_the_layer_ops_whole():
    plan = bind_toy(native())
    assert [c.op for c in plan.choices][:4] == ["begin", "embed", "gdn", "moe"]
    assert {c.how for c in plan.choices} == {"native"}
    assert not plan.placement.expanded
    assert explain(plan)["composed"] == []


def test_a_device_with_primitives_runs_the_decompositions():
    plan = bind_toy(ToyDevice("primitives", PRIMITIVES))
    assert {c.how for c in plan.choices} == {"native"}
    assert all(OPS[c.op].decompose is None for c in plan.choices)
    assert explain(plan)["composed"] == ["attention", "embed", "gdn", "moe", "pick"]


def test_what_a_device_lacks_runs_on_the_host_and_says_so():
    plan = bind_toy(ToyDevice("two", ["linear", "rms_norm"]), host())
    for c in plan.choices:
        if c.op in ("linear", "rms_norm"):
            assert (c.place, c.how, c.reason) == (Place.DEVICE, "native", "")
        else:
            assert (c.place, c.how) == (Place.HOST, "host")
            assert c.reason == f"two has no kernel for {c.op}"


def test_a_refusal_of_the_kernel_is_the_reason_that_is_kept():
    def refuse(sig):
        return f"N={sig['N']} exceeds 64" if sig.op == "linear" and sig["N"] > 64 else ""

    plan = bind_toy(ToyDevice("small", PRIMITIVES, refuse), host())
    at = choices(plan)
    assert at["layers.0.gdn/qkv"].reason == "N=160 exceeds 64"
    assert at["layers.0.gdn/qkv"].place is Place.HOST
    assert at["layers.0.gdn/out"].place is Place.DEVICE


def test_references_run_only_where_allowed():
    plan = bind_toy(ToyDevice("none"), allow_reference=True)
    assert {(c.how, c.place) for c in plan.choices} == {("reference", Place.DEVICE)}
    behind = bind_toy(ToyDevice("none"), ToyDevice("host"), allow_reference=True)
    assert {(c.how, c.place) for c in behind.choices} == {("reference", Place.HOST)}


def test_an_op_that_nothing_runs_is_refused_with_both_reasons():
    def refuse(sig):
        return "K=32 exceeds 16" if sig.op == "attend" else ""

    device = ToyDevice("gpu", without("attend"))
    with pytest.raises(Unsupported) as error:
        bind_toy(device, ToyDevice("cpu", PRIMITIVES, refuse))
    assert error.value.code == "CRT-3103"
    assert "gpu has no kernel for attend" in error.value.evidence
    assert "K=32 exceeds 16" in error.value.evidence
    assert "attention/attend" in error.value.what
    with pytest.raises(Unsupported) as error:
        bind_toy(device)
    assert "gpu has no kernel for attend" in error.value.evidence
    assert "no host device" in error.value.evidence


def test_one_state_op_on_the_host_takes_all_that_touch_its_states_along():
    plan = bind_toy(ToyDevice("most", without("block_memory")), host())
    at = choices(plan)
    for layer in range(3):
        away = f"layers.{layer}.gdn/memory"
        assert at[away].reason == "most has no kernel for block_memory"
        for name in (f"layers.{layer}.gdn/scan", f"layers.{layer}.gdn/conv"):
            assert at[name].place is Place.HOST
            assert at[name].reason.startswith("shares its state with layers.")
        assert at[f"layers.{layer}.advance"].place is Place.HOST
        assert at[f"layers.{layer}.gdn/qkv"].place is Place.DEVICE
    assert at["layers.3.attention/append"].place is Place.DEVICE
    for name, place in plan.state_places.items():
        is_memory = name.rsplit(".", 1)[-1] in ("ring", "S") or ".tape_" in name
        assert place is (Place.HOST if is_memory else Place.DEVICE), name


def test_a_fused_layer_op_is_taken_apart_when_its_states_are_on_the_host():
    plan = bind_toy(ToyDevice("fused", ["gdn", *without("advance")]), host())
    at = choices(plan)
    assert "layers.0.gdn" not in at
    assert at["layers.0.gdn/scan"].place is Place.HOST
    assert "layers.0.advance" in at["layers.0.gdn/scan"].reason
    assert at["layers.0.gdn/out"].place is Place.DEVICE


def test_each_state_is_where_every_node_that_touches_it_runs():
    devices = (
        (native(), None),
        (ToyDevice("two", ["linear", "rms_norm"]), host()),
        (ToyDevice("layers", ["gdn", "moe", "attention", "advance"]), host()),
        *((ToyDevice("most", without(op)), host()) for op in ("kv_append", "causal_conv", "begin")),
    )
    for device, behind in devices:
        plan = bind_toy(device, behind)
        for table in plan.placement.classes:
            nodes = [*plan.graph.nodes, *plan.graph.advances]
            for node in plan.placement.expand(nodes, table):
                for name in node.operands.values():
                    if plan.placement.values[name].kind is ValueKind.STATE:
                        place = plan.placement.choices[node.name].place
                        assert plan.state_places[name] is place, (device.name, node.name, name)


def test_strict_refuses_host_steps_in_the_layers_with_their_reasons():
    with pytest.raises(Unsupported) as error:
        bind_toy(ToyDevice("most", without("block_memory")), host(), strict=True)
    assert error.value.code == "CRT-3101"
    assert "block_memory: most has no kernel for block_memory" in error.value.evidence
    assert "block_scan: shares its state with" in error.value.evidence


def test_strict_allows_host_steps_outside_the_layers():
    plan = bind_toy(ToyDevice("head", without("embed_rows")), host(), strict=True)
    assert choices(plan)["embed/rows"].place is Place.HOST


def refuse_rows(op, *sizes):
    def refuse(sig):
        return f"T={sig['T']} is not taken" if sig.op == op and sig["T"] in sizes else ""

    return refuse


def test_a_refused_bucket_leaves_the_list_and_bounds_the_rows():
    plan = bind_toy(ToyDevice("narrow", PRIMITIVES, refuse_rows("attend", 16, 256)))
    assert plan.placement.buckets[TableClass.COMMIT] == [1, 32, 64]
    assert plan.max_rows == 64
    assert plan.program(TableClass.COMMIT, 9) is plan.program(TableClass.COMMIT, 30)
    with pytest.raises(Unsupported, match="up to 64 rows") as error:
        plan.run(commit([3] * 65))
    assert error.value.code == "CRT-3102"


def test_a_bucket_that_one_class_refuses_stays_in_the_others():
    def refuse(sig):
        wide = sig.table is TableClass.PREVIEW and sig["T"] > 32
        return "a block of more than 32 rows" if sig.op == "moe" and wide else ""

    plan = bind_toy(native(refuse=refuse))
    assert plan.placement.buckets[TableClass.PREVIEW] == [1, 16, 32]
    assert plan.placement.buckets[TableClass.COMMIT] == BUCKETS
    assert plan.max_rows == 32


def test_a_refused_optional_class_is_not_accepted_and_the_rest_is():
    def refuse(sig):
        both = sig.table is TableClass.COMMIT_PREVIEW
        return "two kinds in one table" if sig.op == "gdn" and both else ""

    plan = bind_toy(native(refuse=refuse))
    assert choices(plan)["layers.0.gdn"].how == "native"
    assert not plan.accepts(TableClass.COMMIT_PREVIEW)
    others = [t for t in TableClass if t is not TableClass.COMMIT_PREVIEW]
    assert all(plan.accepts(t) for t in others)
    segments = (Segment(Kind.COMMIT, 0, 0, 1, 0), Segment(Kind.PREVIEW, 0, 1, 1, 1))
    with pytest.raises(Unsupported, match="commit_preview pass of 2 rows"):
        plan.run(Pass(segments, (3, 3)))


def test_the_smallest_bucket_refused_means_that_the_op_is_refused():
    plan = bind_toy(ToyDevice("wide", PRIMITIVES, refuse_rows("rope", 1)), host())
    (c,) = (c for c in plan.choices if c.node == "layers.3.attention/q_rope")
    assert c.place is Place.HOST
    assert c.reason == "T=1 is not taken"
    assert plan.placement.buckets[TableClass.COMMIT] == BUCKETS


@pytest.mark.parametrize("ops", [OPS, PRIMITIVES], ids=["native", "composed"])
def test_supports_is_asked_once_for_each_signature(ops):
    device = ToyDevice("toy", ops)
    plan = bind_toy(device)
    asked = sum(device.asked.values())
    run_every_class(plan)
    assert set(device.asked.values()) == {1}
    assert sum(device.asked.values()) == asked, "a pass asked again"


@pytest.mark.parametrize("ops", [OPS, PRIMITIVES], ids=["native", "composed"])
def test_weights_are_prepared_once_a_node_for_all_classes_and_buckets(ops):
    device = ToyDevice("toy", ops)
    plan = bind_toy(device)
    with_weights = [names for _, names in device.prepared if names]
    assert all("T" not in dict(sig.axes) for sig, _ in device.prepared)
    for rows in (1, 8, 32):
        run_every_class(plan, rows)
    assert [names for _, names in device.prepared if names] == with_weights
    assert len(device.prepared) == len({c.node for c in plan.choices if c.op != "advance"})


def test_preparing_is_reported_node_by_node():
    told = []
    plan = bind_toy(native(), on_progress=lambda done, total, name: told.append((done, total)))
    assert told == [(i + 1, len(plan.graph.nodes)) for i in range(len(plan.graph.nodes))]


def test_steps_are_bound_once_for_each_class_bucket_and_candidates():
    device = native()
    plan = bind_toy(device)
    assert device.bound == []
    nodes = len(plan.graph.nodes)
    for rows in (2, 5, 16, 3):
        plan.run(commit([3] * rows))
    assert len(device.bound) == nodes
    assert device.captured == 1
    plan.run(commit([3] * 17))
    assert len(device.bound) == 2 * nodes
    plan.run(commit([3] * 2), 2)
    plan.run(commit([3] * 2), 64)
    assert len(device.bound) == 3 * nodes
    plan.run(Pass(advances=((0, 0),)))
    plan.run(Pass(advances=((1, 0),)))
    # the advances, and the empty table's own bucket of one row
    assert len(device.bound) == 4 * nodes + len(plan.graph.advances)


def test_runs_of_device_steps_are_captured_between_host_steps():
    device = ToyDevice("most", without("rope"))
    plan = bind_toy(device, host())
    program = plan.program(TableClass.COMMIT, 1)
    on_host = [a for a in program.actions if a.place is Place.HOST]
    runs, inside = 0, False
    for action in program.actions:
        runs += action.place is Place.DEVICE and not inside
        inside = action.place is Place.DEVICE
    assert device.captured == runs
    assert len(program.run) == runs + len(on_host)


def test_a_value_moves_once_even_if_two_host_steps_read_it():
    # every product of a layer reads the one normalised row
    plan = bind_toy(ToyDevice("most", without("linear")), host())
    for table in TableClass:
        moved = Counter(a.moved for a in plan.program(table, 1).actions if a.moved)
        assert moved["layers.0.gdn/norm"] == 1
        assert set(moved.values()) == {1}, table


def test_a_binding_limit_is_an_error_with_both_numbers():
    device = native()
    device.max_binding_bytes = 1024
    with pytest.raises(OutOfMemory, match="at most 1024 bytes") as error:
        bind_toy(device)
    assert error.value.code == "CRT-3201"


def test_explain_counts_native_steps_and_groups_by_reason():
    report = explain(bind_toy(ToyDevice("most", without("rope")), host()))
    (rope,) = (op for op in report["ops"] if op["op"] == "rope")
    assert rope == {
        "op": "rope",
        "nodes": 2,
        "how": "host",
        "place": "host",
        "numerics": "f32",
        "reason": "most has no kernel for rope",
    }
    assert report["native"] == report["nodes"] - 2
    assert report["host"] == "host" and report["device"] == "most"
    assert report["classes"]["mixed"] == BUCKETS


def test_a_twin_is_not_asked_about_classes_with_previews():
    device = native()
    bind_toy(device, graph=golden_graph("qwen35moe_tiny"))
    assert {sig.table for sig in device.asked} == {TableClass.COMMIT, TableClass.VERIFY}
