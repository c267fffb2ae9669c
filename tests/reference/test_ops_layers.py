"""Layer ops, by their decompositions, give the golden hidden rows, routes and coresets."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.graph import ValueKind, flatten
from clover_rt.model.build import Capacity, build_graph
from clover_rt.ops import OPS
from clover_rt.ops.common import table
from clover_rt.ops.derived import run_nodes
from clover_rt.spec import PAGE_ROWS, DType, Kind, StepLayout, TableClass
from clover_rt.weights import Checkpoint, load_weights
from tests.golden import arrays, assert_close, checkpoint, runs

GOLD = arrays("clover_tiny")
LAYOUT = StepLayout(rows=256, segments=8, wanted=64)
# float32 roundings of float64 results, the angles' own rounding among them
BOUND = 2e-5
BLOCKS = ("preview_masks", "preview_half", "preview_width8")


@pytest.fixture(scope="module")
def graph():
    opened = Checkpoint.open(checkpoint("clover_tiny"))
    capacity = Capacity(slots=1, context=256, pages=4, draft=8, layout=LAYOUT)
    return build_graph(opened.config, load_weights(opened), capacity)


def fresh(graph):
    """Return the graph's values, states in float64 and empty."""
    values = {}
    for v in graph.values.values():
        if v.kind is ValueKind.STATE:
            is_integer = v.dtype in (DType.I32, DType.U32)
            values[v.name] = np.zeros(v.shape, v.dtype.value if is_integer else np.float64)
        elif v.kind is ValueKind.WEIGHT:
            values[v.name] = v.weight.whole()
        elif v.kind is ValueKind.CONSTANT:
            values[v.name] = v.data
    return values


def run(graph, values, kind, ids, position):
    """Run the layers of one segment over the states in `values`."""
    ids = np.asarray(ids, np.int32)
    pages = [(0, i, 3 - i) for i in range(256 // PAGE_ROWS)]
    segments = [(kind, 0, len(ids), position)]
    values["params"] = table(segments, LAYOUT, tokens=ids, page_deltas=pages)
    for node in graph.nodes:
        run_nodes(flatten(node, TableClass.of([kind])), values, OPS)


@pytest.mark.parametrize("name", ["short", "one"])
def test_every_layer_gives_the_golden_rows_and_routes(graph, name):
    values, ids = fresh(graph), runs("clover_tiny")["prompts"][name]
    run(graph, values, Kind.COMMIT, ids, 0)
    hidden = GOLD[f"{name}.causal_hidden"]
    assert_close(values["embed"], hidden[0], 0, "embed")
    for layer in range(4):
        assert_close(values[f"layers.{layer}.moe"], hidden[layer + 1], BOUND, f"layer {layer}")
        routes = f"{name}.route.{layer}"
        assert_close(values[f"layers.{layer}.moe/ids"], GOLD[f"{routes}.experts"], 0, routes)
        weights = values[f"layers.{layer}.moe/weights"]
        assert_close(weights, GOLD[f"{routes}.weights"], BOUND, routes)


@pytest.mark.parametrize("name", ["short", "one", "long"])
def test_every_layer_gives_the_golden_rows_and_coreset_of_a_block(graph, name):
    values, ids = fresh(graph), runs("clover_tiny")["prompts"][name]
    run(graph, values, Kind.COMMIT, ids, 0)
    for block in BLOCKS:
        gold = f"{name}.{block}"
        run(graph, values, Kind.PREVIEW, GOLD[f"{gold}.block"], len(ids))
        for layer in range(4):
            rows = values[f"layers.{layer}.moe"]
            assert_close(rows, GOLD[f"{gold}.hidden"][layer + 1], BOUND, f"{gold} {layer}")
            kept = values[f"layers.{layer}.moe/allowed"][0]
            np.testing.assert_array_equal(kept, GOLD[f"{gold}.kept"][layer], err_msg=gold)
