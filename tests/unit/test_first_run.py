"""Before a device runs a model for the first time, two of its layers are judged by the cpu."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from clover_rt import builtin
from clover_rt.api import first_run, load, loading, open_model
from clover_rt.api.first_run import LIMITS, near_ties, some_layers, some_rows
from clover_rt.api.remembered import Remembered
from clover_rt.backend import DeviceInfo
from clover_rt.errors import BackendUnavailable
from clover_rt.plugins import open_device
from clover_rt.spec import Format, HostWeight, Numerics, Weight
from clover_rt.weights import Checkpoint, load_weights
from clover_rt_conformance.reference_device import ReferenceDevice
from tests.golden import checkpoint
from tests.meta.wrong_device import fault

INFO = DeviceInfo("card:0", "A card", "discrete", notes={"driver": "1.0", "chosen": "by default"})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the folder of remembered results, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "clover-rt" / "first-run"


@pytest.fixture
def card(monkeypatch, cache):
    """Return card(maker of a device, info): what backend `card` opens; counts in `card.opened`."""

    def install(make, info=INFO):
        install.opened = 0

        def opening(name, device=None):
            if name == "cpu":
                return open_device("cpu")
            install.opened += 1
            made = make()
            made.name, made.info, made.origin = "A card", info, "plugin 'card' 1"
            return None, made

        monkeypatch.setattr(loading, "open_device", opening)
        monkeypatch.setattr(first_run, "open_device", opening)

    return install


@pytest.fixture
def agreeing(card, monkeypatch):
    """Return `card` where every comparison is right: what is remembered does not depend on them."""
    right = first_run.Deviation(0, "gdn", "one row", 1e-6, 1e-4)
    monkeypatch.setattr(first_run, "bind", lambda *args, **kwargs: None)
    monkeypatch.setattr(first_run, "deviations", lambda *args: iter([right]))
    return card


def checked(path=None, **options):
    """Return what the first run says of a checkpoint; its model is not loaded."""
    opened = open_model(path, backend="card", context=64, **options)
    try:
        return first_run.check(opened)
    finally:
        opened.close()


def shifted(op, result):
    """Return a maker of a device that is right but for one op, whose last columns it mixes up."""

    def spoil(call):
        # a scale would not do: norms undo it
        rows = call[result][: call.rows]
        rows[:, -2:] = rows[:, -2:][:, ::-1].copy()

    return fault(op, spoil)


def test_a_right_device_passes_and_is_not_checked_again(card, cache):
    card(ReferenceDevice)
    said = checked()
    assert said.startswith("first run of this model on A card: two layers agree with the cpu")
    # the device of the load, and one of its own for the check
    assert card.opened == 2
    assert checked() == ""
    assert card.opened == 3
    (kept,) = cache.iterdir()
    told = json.loads(kept.read_text())
    # 2 mixers and 2 mixtures of experts in 2 commits, and the mixers in a preview
    assert len(told["deviations"]) == 10
    assert told["key"]["driver"] == {"driver": "1.0"}


@pytest.mark.parametrize(
    ("op", "result", "layer", "told"),
    [
        ("attend", "y", 1, "attention"),
        ("rope", "y", 1, "attention"),
        ("gated_norm", "y", 0, "gdn"),
        ("block_scan", "o", 0, "gdn"),
    ],
)
def test_a_device_that_is_wrong_in_one_layer_is_refused_with_the_numbers(
    card, cache, op, result, layer, told
):
    card(shifted(op, result))
    with pytest.raises(BackendUnavailable, match="CRT-3015") as caught:
        checked()
    evidence = caught.value.evidence
    assert f"layer {layer}, {told}, 72 rows of a prompt: off by 0." in evidence
    assert "at most 0.0002 is right" in evidence
    other = "gdn" if told == "attention" else "attention"
    assert f", {other}," not in evidence and ", moe," not in evidence
    assert "conformance --backend card --device card:0" in caught.value.fix
    # it is refused again: nothing of it is remembered
    assert not cache.exists()


def test_wrong_experts_are_charged_to_both_layers(card):
    card(shifted("expert_gemm", "y"))
    with pytest.raises(BackendUnavailable) as caught:
        checked()
    assert "layer 0, moe" in caught.value.evidence and "layer 1, moe" in caught.value.evidence
    assert "gdn" not in caught.value.evidence and "attention" not in caught.value.evidence


def test_a_device_that_is_wrong_only_in_previews_is_refused(card):
    card(shifted("block_memory", "o"))
    with pytest.raises(BackendUnavailable) as caught:
        checked()
    assert "1 of 10 comparisons" in caught.value.evidence
    assert "layer 0, gdn, a block of 32 rows" in caught.value.evidence


def test_a_state_that_is_wrong_shows_in_the_row_behind_it(card):
    def forget(call):
        call["S"][:] = 0

    card(fault("block_scan", forget))
    with pytest.raises(BackendUnavailable) as caught:
        checked()
    assert "layer 0, gdn, one row behind them" in caught.value.evidence
    assert "72 rows of a prompt" not in caught.value.evidence


def test_a_result_that_is_not_a_number_is_wrong(card):
    def spoil(call):
        call["y"][: call.rows] = np.nan

    card(fault("attend", spoil))
    with pytest.raises(BackendUnavailable, match="off by inf"):
        checked()


@pytest.mark.parametrize(
    "change",
    [
        lambda info: replace(info, id="card:1"),
        lambda info: replace(info, name="Another card"),
        lambda info: replace(info, notes={**info.notes, "driver": "1.1"}),
    ],
    ids=["place", "name", "driver"],
)
def test_another_device_or_driver_is_checked_anew(agreeing, change):
    agreeing(ReferenceDevice)
    assert checked()
    agreeing(ReferenceDevice, change(INFO))
    assert checked()


def test_why_a_device_was_chosen_is_no_part_of_what_it_is(agreeing):
    agreeing(ReferenceDevice)
    assert checked()
    agreeing(ReferenceDevice, replace(INFO, notes={**INFO.notes, "chosen": "by its name"}))
    assert checked() == ""


def test_another_version_or_model_is_checked_anew(agreeing, monkeypatch):
    agreeing(ReferenceDevice)
    assert checked() and checked() == ""
    assert checked(checkpoint("qwen35moe_tiny"))
    monkeypatch.setattr(first_run, "__version__", "9.9")
    assert checked()


def test_the_cpu_is_not_checked(card, cache):
    opened = open_model(backend="cpu", context=64)
    assert first_run.check(opened) == ""
    opened.close()
    assert not cache.exists()


def test_loading_checks_and_tells(agreeing):
    agreeing(ReferenceDevice)
    with load(backend="card", context=64) as model:
        device, first = model.notes
    assert device == "card on card:0: A card; by default"
    assert first.endswith("two layers agree with the cpu; the largest deviation is 1e-06 of 0.0001")
    with load(backend="card", context=64) as model:
        assert model.notes == (device,)


def test_a_cache_that_cannot_be_written_is_no_error(agreeing, cache):
    cache.parent.write_text("a file where a folder should be")
    agreeing(ReferenceDevice)
    assert checked() and checked()


def test_a_file_that_was_cut_short_counts_as_none(tmp_path):
    memory = Remembered({"a": 1}, tmp_path)
    assert not memory.is_there
    memory.keep({"found": 2})
    assert memory.is_there
    assert not Remembered({"a": 2}, tmp_path).is_there
    memory.path.write_text(memory.path.read_text()[:-2])
    assert not memory.is_there


def test_the_cache_lies_in_the_users_cache_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert str(Remembered({}).path.parent) == "/some/where/clover-rt/first-run"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert str(Remembered({}).path.parent).endswith(".cache/clover-rt/first-run")


def test_the_layers_are_the_first_of_each_kind_with_their_own_weights():
    opened = Checkpoint.open(checkpoint("clover_tiny"))
    weights = load_weights(opened)
    layers = some_layers(opened.config, weights)
    first = {kind: opened.config.layer_types.index(kind) for kind in opened.config.layer_types}
    assert layers.numbers == tuple(sorted(first.values())) == (0, 3)
    assert layers.weights["layers.1.q"] is weights["layers.3.q"]
    assert layers.weights["layers.0.qkv"] is weights["layers.0.qkv"]


def test_rows_are_taken_over_all_pieces_of_a_table():
    table = np.arange(60, dtype=np.float32).reshape(20, 3)
    pieces = [Weight(Format.F32, (n, 3), table[at : at + n]) for at, n in ((0, 7), (7, 13))]
    rows = some_rows(HostWeight("embed", Format.F32, (20, 3), pieces), 4)
    # from the first to the last, evenly: 0, 19/3, 38/3, 19
    np.testing.assert_array_equal(rows.codes, table[[0, 6, 12, 19]])


def test_a_row_with_two_experts_on_the_border_is_a_near_tie():
    opened = Checkpoint.open(builtin.path())
    layers = some_layers(opened.config, load_weights(opened))
    config = layers.config
    router = layers.weights["layers.0.router"].whole().values().copy()
    norm = np.zeros(config.hidden_size)
    # experts 0 .. R - 1 are far above, and on this input R - 1 and R give the same logit
    h = np.ones((2, config.hidden_size))
    h[1, 0] = 3.0
    router[:] = 0
    last = config.experts_per_token
    router[:last] = 1.0
    router[last] = 1.0
    router[last, 0] = 0.0
    router[last, 1] = 2.0
    made = {
        "layers.0.router": HostWeight.of(Weight(Format.F32, router.shape, router.astype("f4"))),
        "layers.0.post_norm": HostWeight.of(Weight(Format.F32, norm.shape, norm.astype("f4"))),
    }
    found = near_ties(h, replace(layers, weights=made), 0, 1e-3)
    assert found.tolist() == [True, False]


def test_a_looser_numerics_has_a_looser_limit():
    assert LIMITS[Numerics.F32] < LIMITS[Numerics.BF16] <= LIMITS[Numerics.INT8_G32] < 1
