"""Models of the release's shape with random q4 weights, and plans of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clover_rt.backend import Device
from clover_rt.model.build import Capacity, build_graph
from clover_rt.model.config import ModelConfig
from clover_rt.plan import Plan, bind
from clover_rt.spec import Format, HostWeight, Precision, StepLayout
from clover_rt.weights import Checkpoint, load_weights

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# three layers with a memory and one with attention
LAYERS, VOCAB, CONTEXT = 4, 1024, 256
PAGES = CONTEXT // 64
# widths that are quick; what decides how often something is read (experts, rows, query heads that
# share a key, columns of a head) is the release's
NARROW = {
    "hidden_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
Model = tuple[ModelConfig, Mapping[str, HostWeight]]


def packed(folder: Path, sizes: Mapping[str, Any]) -> Model:
    """Write a checkpoint as `clover-rt quantize` stores one, and open it.

    sizes  fields of the release's configuration that are others here
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        make = importlib.import_module("make_release")
        of_release = make.release_config
        patch.setattr(make, "release_config", lambda *given: of_release(*given) | sizes)
        make.make_packed(folder, Format.Q4, LAYERS, VOCAB)
    checkpoint = Checkpoint.open(folder)
    return checkpoint.config, load_weights(checkpoint)


def plan_of(model: Model, device: Device, precision: Precision) -> Plan:
    """Return the plan with two slots; nothing of it runs on the host."""
    config, weights = model
    assert config.block is not None
    layout = StepLayout()
    capacity = Capacity(2, CONTEXT, 2 * PAGES, config.block.block_size, layout)
    graph = build_graph(config, weights, capacity)
    return bind(graph, device, None, layout=layout, context=CONTEXT, precision=precision)


def pages(slot: int) -> tuple[tuple[int, int, int], ...]:
    """Return the pages of a slot, last first."""
    return tuple((slot, i, (slot + 1) * PAGES - 1 - i) for i in range(PAGES))
