"""A graph is checked as a whole: every operand that does not fit, by node and axis name."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.errors import BadGraph
from clover_rt.graph import Graph, Value, ValueKind, check_nodes, flatten
from clover_rt.model.build import Capacity, build_graph
from clover_rt.ops import OPS
from clover_rt.spec import DType, Format, HostWeight, Node, StepLayout, TableClass, Tier, Weight
from clover_rt.weights import Checkpoint, load_weights
from tests.golden import checkpoint

NAMES = ("clover_tiny", "clover_tiny_b8", "qwen35moe_tiny")


def open_graph(name, **patched):
    opened = Checkpoint.open(checkpoint(name))
    weights = {**load_weights(opened), **patched}
    return build_graph(opened.config, weights, Capacity(2, 128, 4, 16, StepLayout()))


def zeros(*shape):
    return HostWeight.of(Weight(Format.F32, shape, np.zeros(shape, np.float32)), "patched")


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_graph_has_its_nodes_in_running_order(name):
    graph = open_graph(name)
    ops = [n.op for n in graph.nodes]
    assert ops[:2] == ["begin", "embed"] and ops[-1] == "pick"
    assert ops[2:-1:2] == ["gdn", "gdn", "gdn", "attention"]
    assert set(ops[3:-1:2]) == {"moe"}
    assert [n.name for n in graph.advances] == [f"layers.{i}.advance" for i in range(3)]


# a twin has no block weights: no plan of it binds a class with previews
BOUND = [(n, t) for n in NAMES for t in TableClass if n != "qwen35moe_tiny" or not t.has_preview]


@pytest.mark.parametrize("name, table", BOUND, ids=lambda x: getattr(x, "value", x))
def test_every_decomposition_is_well_formed(name, table):
    graph = open_graph(name)
    nodes = [part for n in [*graph.nodes, *graph.advances] for part in flatten(n, table)]
    assert check_nodes(nodes, graph.values) == []
    assert {OPS[n.op].tier for n in nodes} == {Tier.PRIMITIVE}
    assert len({n.name for n in nodes}) == len(nodes)


@pytest.mark.parametrize("table", list(TableClass), ids=lambda t: t.value)
def test_a_decomposition_reads_and_makes_what_its_layer_op_does(table):
    graph = open_graph("clover_tiny")
    for node in graph.nodes:
        spec, parts = OPS[node.op], flatten(node, table)
        made = {p.operands[o.name] for p in parts for o in OPS[p.op].outputs}
        assert {node.operands[o.name] for o in spec.outputs} <= made
        outside = {v for p in parts for v in p.operands.values()} - made
        assert outside <= set(node.operands.values()), node.name
        inner = made - set(node.operands.values())
        assert all(name.startswith(f"{node.name}/") for name in inner)
        written = {
            p.operands[name] for p in parts for name in OPS[p.op].writes if name in p.operands
        }
        assert written - made == {node.operands[name] for name in spec.writes}


def test_all_shape_errors_come_at_once_by_node_and_axis():
    with pytest.raises(BadGraph) as error:
        open_graph(
            "clover_tiny",
            **{
                "layers.0.qkv": zeros(160, 63),
                "layers.2.expert_down": zeros(15, 64, 32),
                "layers.3.k_norm": zeros(16),
            },
        )
    assert error.value.code == "CRT-2001"
    assert error.value.what == "the graph has 3 operands that do not fit"
    assert error.value.evidence.split("; ") == [
        "layers.0.gdn (gdn): operand 'qkv' = 'weight:layers.0.qkv': axis D is 64, got 63",
        "layers.2.moe (moe): operand 'expert_down' = 'weight:layers.2.expert_down': "
        "axis E is 16, got 15",
        "layers.3.attention (attention): operand 'k_norm' = 'weight:layers.3.k_norm': "
        "axis K is 32, got 16",
    ]


def edge(name, *shape, dtype=DType.EDGE):
    return Value(name, ValueKind.EDGE, dtype, shape)


def values_of(*values):
    params = Graph().values
    return {**params, **{v.name: v for v in values}}


T = 1_000_003
AXES = {"N": 8, "K": 4}


def linear(**operands):
    return Node("n", "linear", {"params": "params", "y": "n", **operands}, AXES)


def weight_value(*shape):
    return Value("w", ValueKind.WEIGHT, DType.EDGE, shape, zeros(*shape))


def problems(node, *values):
    return check_nodes([node], values_of(*values))


def test_a_node_that_fits_has_no_problems():
    assert problems(linear(x="x", w="w"), edge("x", T, 4), weight_value(8, 4)) == []


def test_an_unknown_operand_is_named():
    (found,) = problems(linear(x="x", w="w", bias="x"), edge("x", T, 4), weight_value(8, 4))
    assert found == "n (linear): unknown operand 'bias'"


def test_a_missing_operand_is_named_unless_it_is_optional():
    assert problems(linear(x="x"), edge("x", T, 4)) == ["n (linear): operand 'w' is missing"]


def test_a_value_that_nothing_makes_is_named():
    (found,) = problems(linear(x="x", w="w", residual="r"), edge("x", T, 4), weight_value(8, 4))
    assert found == "n (linear): operand 'residual' reads 'r', which nothing makes"


def test_a_value_made_by_an_earlier_node_is_known_and_one_made_later_is_not():
    first = linear(x="x", w="w")
    second = Node(
        "m", "output_gate", {"params": "params", "o": "n", "gate": "n", "y": "m"}, {"N": 8}
    )
    known = values_of(edge("x", T, 4), weight_value(8, 4))
    assert check_nodes([first, second], known) == []
    found = check_nodes([second, first], known)
    assert [f for f in found if "which nothing makes" in f] == [
        "m (output_gate): operand 'o' reads 'n', which nothing makes",
        "m (output_gate): operand 'gate' reads 'n', which nothing makes",
    ]


def test_another_number_of_axes_is_one_problem():
    (found,) = problems(linear(x="x", w="w"), edge("x", T, 4, 1), weight_value(8, 4))
    assert found == "n (linear): operand 'x' = 'x' has 3 axes, not [T, K]"


def test_dynamic_axes_are_shown_by_name():
    (found,) = problems(linear(x="x", w="w"), edge("x", 2 * T, 4), weight_value(8, 4))
    assert found.endswith("axis T is T, got 2*T")


def test_axes_that_the_node_does_not_give_are_named():
    node = Node("n", "linear", {"params": "params", "x": "x", "w": "w", "y": "n"}, {})
    (found,) = problems(node, edge("x", T, 4), weight_value(8, 4))
    assert found == "n (linear): axes K, N are not given"


def test_an_integer_where_an_activation_is_read_is_a_type_mismatch():
    (found,) = problems(linear(x="x", w="w"), edge("x", T, 4, dtype=DType.I32), weight_value(8, 4))
    assert found == "n (linear): operand 'x' = 'x': type is edge, got int32"


def test_an_op_that_reads_an_activation_takes_float32_too():
    float32 = edge("x", T, 4, dtype=DType.F32)
    assert problems(linear(x="x", w="w"), float32, weight_value(8, 4)) == []


def test_a_state_keeps_its_exact_type():
    node = Node(
        "n",
        "begin",
        {"params": "params", "page_table": "p", "counts": "c"},
        {"slots": 2, "slot_pages": 3, "vocab": 5},
    )
    table = Value("p", ValueKind.STATE, DType.I32, (2, 3))
    counts = Value("c", ValueKind.STATE, DType.F32, (2, 5))
    (found,) = check_nodes([node], values_of(table, counts))
    assert found == "n (begin): operand 'counts' = 'c': type is int32, got float32"
