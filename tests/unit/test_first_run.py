"""Before a device runs a model for the first time, two of its layers are judged by the cpu."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from clover_rt import builtin
from clover_rt.api import first_run, load, loading, open_model
from clover_rt.api.first_run import LIMITS, FirstRun, near_ties, some_layers, some_rows
from clover_rt.api.remembered import Remembered
from clover_rt.backend import DeviceInfo
from clover_rt.errors import BackendUnavailable, NonFinite
from clover_rt.plugins import Status, open_device
from clover_rt.spec import Format, HostWeight, Numerics, Weight
from clover_rt.weights import Checkpoint, load_weights
from clover_rt_conformance.reference_device import ReferenceDevice
from tests.golden import checkpoint
from tests.meta.wrong_device import fault

INFO = DeviceInfo("card:0", "A card", "discrete", notes={"driver": "1.0", "chosen": "by default"})
CHOSEN = "card on card:0: A card; by default"
STARTED = (
    "first run of this model on A card: comparing two of its layers with the cpu, which compiles "
    "their kernels"
)


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


@pytest.fixture
def others(monkeypatch):
    """Return a list: the devices of each backend that a survey of this machine finds."""
    found = {}

    def surveyed(environ=None):
        rows = found.items()
        return [Status(n, n, "1", "1.3", "usable", "", devices=tuple(d)) for n, d in rows]

    monkeypatch.setattr(first_run, "survey", surveyed)
    return found


def checked(path=None, **told):
    """Return what the first run of a checkpoint came to; its model is not loaded."""
    opened = open_model(path, backend="card", context=64)
    try:
        return first_run.check(opened, **told)
    finally:
        opened.close()


def is_new(path=None):
    """Is a device checked now? It passes, be it now or before."""
    return checked(path).result == "passed"


def shifted(op, result):
    """Return a maker of a device that is right but for one op, whose last columns it mixes up."""

    def spoil(call):
        # a scale would not do: norms undo it
        rows = call[result][: call.rows]
        rows[:, -2:] = rows[:, -2:][:, ::-1].copy()

    return fault(op, spoil)


def test_a_right_device_passes_and_is_not_checked_again(card, cache):
    card(ReferenceDevice)
    found = checked()
    # 2 mixers and 2 mixtures of experts in 2 commits, and the mixers in a preview
    assert (found.result, found.comparisons) == ("passed", 10)
    assert 0 <= found.deviation <= found.limit == LIMITS[Numerics.F32]
    # the device of the load, and one of its own for the check
    assert card.opened == 2
    assert checked() == replace(found, result="remembered")
    assert card.opened == 3
    (kept,) = cache.iterdir()
    told = json.loads(kept.read_text())
    assert len(told["deviations"]) == 10
    assert told["key"]["driver"] == {"driver": "1.0"}


def test_a_first_run_says_what_it_does_before_it_does_it(card):
    """The order of lines, of steps of the device, and of what is told of them."""
    seen = []

    class Slow(ReferenceDevice):
        """Takes long to make a kernel, and says so."""

        def capture(self, steps):
            self.on_progress(0, 1, "compiling a kernel")
            seen.append("compiled")
            return super().capture(steps)

    card(Slow)
    progress = []

    def on_progress(done, total, what):
        progress.append((done, total, what))
        if what == "compiling a kernel":
            seen.append(what)

    checked(on_progress=on_progress, on_note=seen.append)
    assert seen[0] == STARTED
    assert seen[1:-1] == ["compiling a kernel", "compiled"] * 3
    assert seen[-1].startswith("two layers agree with the cpu; the largest deviation is ")
    steps = [(done, total) for done, total, what in progress if what.startswith("comparing")]
    total = steps[0][1]
    # every step of three passes, told before it runs, and the end
    assert total > 3 * 2 and steps == [(i, total) for i in range(total + 1)]
    prepared = [what for _, _, what in progress if what.startswith("layers.")]
    assert prepared[0].startswith("layers.0.") and prepared[-1].startswith("layers.1.")


def test_what_passed_before_is_told_in_no_line(agreeing):
    agreeing(ReferenceDevice)
    checked()
    notes = []
    assert checked(on_note=notes.append) == FirstRun("remembered", 1, 1e-6, 1e-4)
    assert notes == []


def test_a_kept_result_without_its_numbers_counts_as_none(agreeing, cache):
    agreeing(ReferenceDevice)
    assert is_new()
    (kept,) = cache.iterdir()
    told = json.loads(kept.read_text())
    del told["largest"]
    kept.write_text(json.dumps(told))
    assert is_new() and not is_new()


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
    assert caught.value.fix.startswith("use --backend cpu; ")
    # it is refused again: nothing of it is remembered
    assert not cache.exists()


def test_a_refusal_names_what_else_drives_the_same_card(card, others):
    own = replace(INFO, notes={**INFO.notes, "engine": "triton", "arch": "gfx1201"})
    others["card"] = [
        own,
        replace(own, id="card:1", name="A second card"),
        DeviceInfo("other:0", "gfx1201", "discrete", notes={"engine": "opencl"}),
        DeviceInfo("other:1", "PoCL", "cpu", is_software=True, notes={"engine": "opencl"}),
    ]
    others["cpu"] = [DeviceInfo("cpu", "A processor")]
    others["vulkan"] = [
        DeviceInfo("vulkan:0", "A card (RADV)", "discrete"),
        DeviceInfo("vulkan:1", "Another maker's", "discrete"),
        DeviceInfo("vulkan:2", "A cardX (RADV)", "discrete"),
    ]
    card(shifted("rope", "y"), own)
    with pytest.raises(BackendUnavailable, match="CRT-3015") as caught:
        checked()
    assert caught.value.fix.startswith(
        "use --backend card --device other:0 (gfx1201, engine opencl), "
        "--backend vulkan --device vulkan:0 (A card (RADV)) or --backend cpu; "
    )
    # neither the engine that failed, nor what is no card or another one
    assert not [n for n in ("card:1", "PoCL", "vulkan:1", "vulkan:2") if n in caught.value.fix]


def test_weights_that_are_not_finite_are_charged_to_the_checkpoint(card, cache, monkeypatch):
    some_layers = first_run.some_layers

    def broken(config, weights):
        layers = some_layers(config, weights)
        name = "layers.1.input_norm"
        right = layers.weights[name]
        values = np.full(right.shape, np.nan, np.float32)
        wrong = HostWeight.of(Weight(Format.F32, right.shape, values), name)
        return replace(layers, weights={**layers.weights, name: wrong})

    monkeypatch.setattr(first_run, "some_layers", broken)
    card(ReferenceDevice)
    with pytest.raises(NonFinite, match="CRT-4002") as caught:
        checked(checkpoint("clover_tiny"))
    assert "behind layers.3.attention" in caught.value.evidence and "checkpoint" in caught.value.fix
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
    assert is_new()
    agreeing(ReferenceDevice, change(INFO))
    assert is_new()


def test_why_a_device_was_chosen_is_no_part_of_what_it_is(agreeing):
    agreeing(ReferenceDevice)
    assert is_new()
    agreeing(ReferenceDevice, replace(INFO, notes={**INFO.notes, "chosen": "by its name"}))
    assert not is_new()


def test_another_version_or_model_is_checked_anew(agreeing, monkeypatch):
    agreeing(ReferenceDevice)
    assert is_new() and not is_new()
    assert is_new(checkpoint("qwen35moe_tiny"))
    monkeypatch.setattr(first_run, "__version__", "9.9")
    assert is_new()


def test_the_cpu_is_not_checked(card, cache):
    opened = open_model(backend="cpu", context=64)
    assert first_run.check(opened) is None
    opened.close()
    assert not cache.exists()


def test_loading_tells_the_device_before_anything_can_hang_on_it(agreeing):
    agreeing(ReferenceDevice)
    notes = []
    with load(backend="card", context=64, on_note=notes.append):
        pass
    agreed = "two layers agree with the cpu; the largest deviation is 1e-06 of 0.0001"
    assert notes == [CHOSEN, STARTED, agreed]
    notes.clear()
    with load(backend="card", context=64, on_note=notes.append):
        pass
    assert notes == [CHOSEN]


def test_a_response_says_where_it_runs_and_what_its_first_run_came_to(agreeing):
    info = replace(INFO, notes={**INFO.notes, "engine": "triton"})
    agreeing(ReferenceDevice, info)
    with load(backend="card", context=64) as model:
        about = model.generate("Hello").about
    named = {"device_id": "card:0", "engine": "triton", "chosen": "by default"}
    assert {name: about[name] for name in named} == named
    first = {"comparisons": 1, "deviation": 1e-6, "limit": 1e-4}
    assert about["first_run"] == {"result": "passed", **first}
    with load(backend="card", context=64) as model:
        assert model.generate("Hello").about["first_run"] == {"result": "remembered", **first}


def test_a_response_of_the_cpu_had_no_first_run():
    with load(context=64) as model:
        about = model.generate("Hello").about
    assert (about["device_id"], about["first_run"], about["engine"]) == ("cpu", None, None)


def test_a_cache_that_cannot_be_written_is_no_error(agreeing, cache):
    cache.parent.write_text("a file where a folder should be")
    agreeing(ReferenceDevice)
    assert is_new() and is_new()


def test_a_file_that_was_cut_short_counts_as_none(tmp_path):
    memory = Remembered({"a": 1}, tmp_path)
    assert memory.found is None
    memory.keep({"found": 2})
    assert memory.found == {"key": {"a": 1}, "found": 2}
    assert Remembered({"a": 2}, tmp_path).found is None
    memory.path.write_text(memory.path.read_text()[:-2])
    assert memory.found is None


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
