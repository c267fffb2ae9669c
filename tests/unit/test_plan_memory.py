"""Buffers: shared where lives do not overlap, never where they do, none made in a pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.backend import Usage
from clover_rt.errors import OutOfMemory
from clover_rt.graph import ValueKind
from clover_rt.plan import Place
from clover_rt.plan.memory import Pool, allocate, size_class
from clover_rt.spec import TableClass
from tests.toy import PRIMITIVES, ToyDevice
from tests.unit.plan_bench import bind_toy, commit, golden_graph, host, native, preview, verify


def edges_in_order(plan, program):
    """Return place -> [(action index, {value: buffer})] of every kernel call of a program."""
    seen = {place: iter(calls) for place, calls in recorded(plan).items()}
    out = {place: [] for place in seen}
    for i, action in enumerate(program.actions):
        if action.node is None:
            continue
        _, operands = next(seen[action.place])
        buffers = {
            name: operands[operand].buffer
            for operand, name in action.node.operands.items()
            if operand in operands and is_edge(plan, name)
        }
        out[action.place].append((i, buffers))
    return out


def recorded(plan):
    return {place: device.bound for place, device in plan.devices.items()}


def is_edge(plan, name):
    value = plan.placement.values[name]
    return value.kind is ValueKind.EDGE


DEVICES = {
    "native": lambda: (native(), None),
    "composed": lambda: (ToyDevice("primitives", PRIMITIVES), None),
    "two-places": lambda: (ToyDevice("two", ["linear", "rms_norm", "rope"]), host()),
}


@pytest.mark.parametrize("make", list(DEVICES))
@pytest.mark.parametrize("table", list(TableClass), ids=lambda t: t.value)
def test_two_values_that_live_at_the_same_time_never_share_memory(make, table):
    plan = bind_toy(*DEVICES[make]())
    program = plan.program(table, 16)
    for place, calls in edges_in_order(plan, program).items():
        life: dict[str, list[int]] = {}
        memory = {}
        for i, buffers in calls:
            for name, buffer in buffers.items():
                life.setdefault(name, [i, i])[1] = i
                assert memory.setdefault(name, buffer) is buffer, f"{name} moved"
        for a, (start, end) in life.items():
            for b, (other_start, other_end) in life.items():
                if a < b and start <= other_end and other_start <= end:
                    assert memory[a] is not memory[b], f"{a} and {b} on {place.value}"
        for name, buffer in memory.items():
            assert buffer.usage is Usage.EDGE, name


def test_memory_of_activations_does_not_grow_with_depth():
    counts = []
    for layers in (4, 40):
        device = ToyDevice("primitives", PRIMITIVES)
        plan = bind_toy(device, graph=golden_graph(layers=layers))
        for table in TableClass:
            plan.program(table, 32)
        counts.append(device.allocated[Usage.EDGE])
    assert counts[0] == counts[1]


def test_all_programs_share_the_buffers_of_the_largest():
    device = native()
    plan = bind_toy(device)
    plan.program(TableClass.MIXED, 32)
    before = device.allocated[Usage.EDGE]
    for table in TableClass:
        plan.program(table, 32)
    assert device.allocated[Usage.EDGE] == before


def test_nothing_is_allocated_in_a_pass_that_ran_before():
    device, behind = ToyDevice("two", ["linear", "rms_norm"]), host()
    plan = bind_toy(device, behind)
    passes = [commit([3] * 9), preview([3] * 9, 0, 9), verify([3] * 9, 0, 9)]
    for work in passes:
        plan.run(work)
    before = device.allocated + behind.allocated
    for work in passes:
        plan.run(work)
    assert device.allocated + behind.allocated == before


def test_a_native_pass_uploads_the_table_and_downloads_the_picks_and_no_more():
    device = ToyDevice("quiet", PRIMITIVES)
    for kernel in device.kernels.values():
        # steps that do nothing leave the plan's own transfers
        kernel.bind = lambda *_: lambda: None
    plan = bind_toy(device)
    plan.run(commit([3] * 4, wanted=[3]))
    device.transfers = 0
    plan.run(commit([3] * 4, wanted=[3]))
    assert device.transfers == 2


def test_states_are_allocated_once_at_bind():
    device = native()
    plan = bind_toy(device)
    values = plan.graph.values.values()
    kept = [v for v in values if v.kind is ValueKind.STATE]
    assert device.allocated[Usage.STATE] == len(kept)
    assert set(plan.state_places.values()) == {Place.DEVICE}


@given(st.integers(0, 1 << 40), st.sampled_from([1, 64, 256]))
def test_a_size_class_holds_its_size_and_wastes_a_quarter_at_most(nbytes, alignment):
    size = size_class(nbytes, alignment)
    assert size >= max(nbytes, 1)
    assert size % alignment == 0 or alignment > size
    assert size <= max(nbytes * 1.25, nbytes + alignment)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=40))
def test_a_pool_never_hands_out_a_buffer_twice(steps):
    pool = Pool(ToyDevice("toy"))
    taken = []
    for give, nbytes in steps:
        if give and taken:
            pool.give(taken.pop(0))
        else:
            buffer = pool.take(nbytes)
            assert buffer.nbytes >= nbytes
            assert all(buffer is not other for other in taken)
            taken.append(buffer)
    pool.reset()
    assert not pool.taken and len(set(map(id, pool.free))) == len(pool.free)


def test_scratch_grows_to_the_largest_and_is_shared():
    device = ToyDevice("toy")
    pool = Pool(device)
    assert pool.scratch_of(0) is None
    small, large = pool.scratch_of(100), pool.scratch_of(5000)
    assert small is not None and large is not None
    again = pool.scratch_of(64)
    assert again is not None and again.buffer is large.buffer
    assert device.allocated[Usage.SCRATCH] == 2


@pytest.mark.parametrize("most", [0, 4096])
def test_the_limit_of_a_buffer_is_told_only_where_there_is_one(most):
    device = ToyDevice("card", PRIMITIVES)
    device.max_binding_bytes = most

    def alloc(nbytes, usage):
        raise OutOfMemory.of("card", nbytes, 20)

    device.alloc = alloc
    with pytest.raises(OutOfMemory, match="CRT-3202") as caught:
        allocate(device, 1000, Usage.PARAMS, "a tensor")
    assert ("a buffer holds at most 4096 bytes" in caught.value.evidence) is (most > 0)
    assert "any number" not in caught.value.evidence
