"""roofline: its minimum is that of the model's sizes, and plans move what the minimum says."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clover_rt.bench.traffic import Traffic
from clover_rt.graph import flatten
from clover_rt.model.config import ModelConfig
from clover_rt.spec import Format, TableClass

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# parameters of the 35B-A3B trunk that a token uses, by component
EXPERTS = 40 * 8 * 3 * 2048 * 512
HEAD = 248_320 * 2048
GDN, ATTENTION, SHARED = 30 * 33_718_464, 10 * 27_263_488, 40 * 3 * 2048 * 512
ROUTERS, SHARED_GATES, NORMS = 40 * 256 * 2048, 40 * 2048, 81 * 2048
ACTIVE = EXPERTS + HEAD + GDN + ATTENTION + SHARED + ROUTERS + SHARED_GATES + NORMS + 2048
# a memory of 32 heads of 128 x 128 and a ring of 3 rows a GDN layer; K and V of 2 heads of 256
STATE = 30 * 4 * (32 * 128 * 128 + 3 * 8192)
KV_TOKEN = 10 * 2 * 2 * 256 * 2
ONE = dict.fromkeys(("experts", "dense", "head", "embed", "small"), 1.0)


@pytest.fixture(scope="module")
def roofline() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("roofline")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def config(roofline: Any) -> ModelConfig:
    make = importlib.import_module("make_release")
    return ModelConfig.parse(make.release_config(40, 248_320))


@pytest.fixture(scope="module")
def found(roofline: Any) -> dict[str, Any]:
    """Return the report of four layers, of every engine that is installed."""
    engines = ("cpu", "triton", "opencl", "vulkan")
    out: dict[str, Any] = roofline.report(
        Format.Q4, 64, 1024, (90,), roofline.Assumed(), engines, layers=4
    )
    return out


def at(roofline: Any, name: str, routing: int = 163) -> Any:
    """Return a pass at 4096 tokens."""
    return next(p for p in roofline.loads((routing,), 8, 4096) if p.name.startswith(name))


def everywhere(each: float) -> dict[str, float]:
    """Return bytes a number where all matrices are in one format, and the rest in 16 bit."""
    return {**dict.fromkeys(ONE, each), "small": 2.0}


def test_a_token_uses_the_active_parameters(roofline: Any, config: ModelConfig) -> None:
    least = roofline.minimum(config, at(roofline, "decode"), ONE)
    assert (least.experts, least.experts + least.weights) == (EXPERTS, ACTIVE)


def test_a_token_reads_and_writes_the_memories_and_reads_the_cache(
    roofline: Any, config: ModelConfig
) -> None:
    least = roofline.minimum(config, at(roofline, "decode"), ONE)
    assert least.state == 2 * STATE
    assert least.kv == KV_TOKEN * (4096 + 1)


def test_a_preview_leaves_state_and_cache_alone_and_a_commit_needs_no_head(
    roofline: Any, config: ModelConfig
) -> None:
    preview = roofline.minimum(config, at(roofline, "preview"), ONE)
    commit = roofline.minimum(config, at(roofline, "commit"), ONE)
    assert (preview.state, preview.kv) == (STATE, KV_TOKEN * 4096)
    assert (commit.state, commit.kv) == (2 * STATE, KV_TOKEN * (4096 + 32))
    assert preview.weights - commit.weights == HEAD


# GB of weights that a token reads, by the parameters above and the bytes of each format
@pytest.mark.parametrize(
    ("each", "gb"),
    [(2.0, 5.893), (1.0625, 3.151), (0.5625, 1.689), (0.53125, 1.598), (0.515625, 1.552)],
    ids=["bf16", "q8", "q4-32", "q4-64", "q4-128"],
)
def test_a_token_reads_what_its_format_weighs(
    roofline: Any, config: ModelConfig, each: float, gb: float
) -> None:
    least = roofline.minimum(config, at(roofline, "decode"), everywhere(each))
    # the figures take the gates a and b for matrices; they stay in 16 bit here
    kept = 30 * 2 * 32 * 2048 * (2.0 - each) / 1e9
    assert (least.experts + least.weights) / 1e9 == pytest.approx(gb + kept, abs=6e-4)


# GB of a pass at 4096 tokens: weights, state and cache, as summed by hand for the release
@pytest.mark.parametrize(
    ("name", "experts", "each", "gb"),
    [
        ("decode", 8, 2.0, 6.10),
        ("decode", 8, 1.0625, 3.36),
        ("decode", 8, 0.53125, 1.81),
        ("preview", 163, 2.0, 45.1),
        ("preview", 163, 0.53125, 12.1),
        ("preview", 106, 0.53125, 8.3),
        ("preview", 80, 0.53125, 6.5),
    ],
)
def test_a_pass_moves_what_was_summed_by_hand(
    roofline: Any, config: ModelConfig, name: str, experts: int, each: float, gb: float
) -> None:
    least = roofline.minimum(config, at(roofline, name, experts), everywhere(each))
    # the figures have two digits, and fractions of an expert
    assert least.cold / 1e9 == pytest.approx(gb, rel=0.015)


def test_quantising_stores_matrices_in_groups_and_the_head_finer(roofline: Any) -> None:
    each = roofline.bytes_each(Format.Q4, 64)
    assert each == {"experts": 0.53125, "dense": 0.53125, "head": 1.0625, "embed": 1.0625} | {
        "small": 2.0
    }


def test_every_plan_moves_the_minimum_and_little_more(found: dict[str, Any]) -> None:
    assert "cpu" in found["engines"]
    for engine, passes in found["engines"].items():
        for name, row in passes.items():
            # the taps and vectors of a preview, and the tables of ids, are not in the minimum
            assert 1 <= row["over_minimum"] < 1.01, (engine, name)
            least = found["minimum"][name]
            assert row["gb"]["experts"] == pytest.approx(least["experts"])
            assert row["gb"]["kv"] == pytest.approx(least["kv"])


def test_an_engine_that_is_not_installed_is_told_and_not_counted(
    roofline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Any:
        raise ImportError("No module named 'torch'")

    monkeypatch.setitem(roofline.ENGINES, "triton", absent)
    told = roofline.report(Format.Q4, 32, 64, (90,), roofline.Assumed(), ("triton",), layers=4)
    assert told["not_counted"] == {"triton": "No module named 'torch'"}
    assert (told["engines"], told["predictions"]) == ({}, [])
    assert "triton was not counted: No module named 'torch'" in roofline.render(told)


def test_a_step_of_the_cpu_is_a_primitive(roofline: Any, found: dict[str, Any]) -> None:
    engines = importlib.import_module("engines")
    config, weights = roofline.release(4)
    capacity = engines.capacity_for(config, 2, 1088)
    nodes = engines.build_graph(config, weights, capacity).nodes
    for name, table in (("decode", TableClass.COMMIT), ("preview, 90 experts", TableClass.PREVIEW)):
        primitives = sum(len(flatten(node, table)) for node in nodes)
        assert found["engines"]["cpu"][name]["launches"] == primitives


def test_layers_of_triton_kernels_take_few_launches(found: dict[str, Any]) -> None:
    for name, row in found["engines"]["triton"].items():
        by_op = row["launches_by_op"]
        moe = by_op["moe"] / 4
        assert by_op["gdn"] / 3 + moe <= 9, name
        assert by_op["attention"] + moe <= 10, name


def test_products_of_rounded_rows_take_thirteen_instructions_for_thirty_two(roofline: Any) -> None:
    engines = importlib.import_module("engines")
    card = roofline.Card("card", 1000, 100, 10, 32, ("opencl",))
    assumed = roofline.Assumed(arithmetic_share=1.0, opencl_us=0)
    load = at(roofline, "preview")
    plain, rounded = (
        roofline.predict(
            [engines.Step("gdn", 1, Traffic(), 1e11, is_int8)],
            load,
            card,
            "opencl",
            "single",
            assumed,
        )["ms"]
        for is_int8 in (False, True)
    )
    assert (plain, rounded) == pytest.approx((10, 10 * 13 / 32))


def test_time_is_bytes_over_bandwidth_and_a_cost_a_launch(roofline: Any) -> None:
    engines = importlib.import_module("engines")
    card = roofline.Card("card", 1000, 100, 10, 32, ("triton",))
    assumed = roofline.Assumed(bandwidth_share=0.5, arithmetic_share=1.0, recorded_us=10)
    steps = [
        # 3 ms of memory, two thirds of it experts; 1 ms of arithmetic with matrix units
        engines.Step("moe", 50, Traffic(experts=1e9, weights=0.5e9, activations=9e9), 1e11),
        # 2 ms of arithmetic, no memory
        engines.Step("gdn", 50, Traffic(), 2e11),
    ]
    load = at(roofline, "preview")
    told = roofline.predict(steps, load, card, "triton", "recorded", assumed)
    assert told["ms"] == pytest.approx(3 + 2 + 1)
    assert told["share"] == pytest.approx(
        {
            "experts": 2 / 6,
            "router and shared expert": 1 / 6,
            "GDN mixers": 2 / 6,
            "launches": 1 / 6,
        }
    )
    assert told["limit"] == "memory"
    dear = replace(assumed, recorded_us=100)
    slower = roofline.predict(steps, load, card, "triton", "recorded", dear)
    assert slower["ms"] == pytest.approx(3 + 2 + 10)
    assert slower["limit"] == "launches"
    # a tenth of the rate without matrix units: 10 ms and 20 ms
    plain = roofline.predict(steps, load, card, "opencl", "recorded", assumed)
    assert plain["ms"] == pytest.approx(10 + 20 + 1)
    assert plain["limit"] == "arithmetic"


def test_a_block_is_its_previews_and_a_commit(roofline: Any) -> None:
    ms = {"decode": 1e3 / 2658, "preview, 106 experts": 1.72, "commit, 106 experts": 1.72}
    told = roofline.decoding(ms, 106, (8,))
    assert told["ar_tokens_per_s"] == pytest.approx(2658)
    assert told["diffusion_tokens_per_s"][8] == pytest.approx(32e3 / (4 * 1.72 + 1.72))
    level = told["break_even_tokens_a_pass"]
    assert 32 / level * 1.72 + 1.72 == pytest.approx(32 * ms["decode"])


def test_a_commit_that_costs_more_than_its_tokens_is_never_made_good(roofline: Any) -> None:
    ms = {"decode": 1.0, "preview, 90 experts": 1.0, "commit, 90 experts": 32.0}
    assert roofline.decoding(ms, 90, (8,))["break_even_tokens_a_pass"] is None


def test_the_report_is_json_and_its_text_names_every_card(
    roofline: Any, found: dict[str, Any]
) -> None:
    assert json.loads(json.dumps(found))["benchmark"] == "roofline"
    text = roofline.render(found)
    told = {p["card"] for p in found["predictions"]}
    assert all(card in text for card in told)
    assert bool(told) == ("predicted, not measured" in text) == (len(found["engines"]) > 1)
