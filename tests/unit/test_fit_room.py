"""A model that a card has no room for is refused before anything is copied, and told what helps."""

from __future__ import annotations

from collections import Counter

import pytest

from clover_rt.api import first_run, load, loading, open_model
from clover_rt.api.checkpoint import describe
from clover_rt.api.fitting import fits
from clover_rt.api.quantising import quantise
from clover_rt.backend import DeviceInfo, Memory, Usage
from clover_rt.errors import OutOfMemory
from clover_rt.ops import OPS
from clover_rt.plugins import open_device
from clover_rt_conformance.reference_device import ReferenceDevice

GB = 10**9
FACTS = describe()
WEIGHTS = FACTS["weights"]["bytes"]
PER_TOKEN = FACTS["memory"]["kv_bytes_per_token"]


class Card(ReferenceDevice):
    """Has memory of a size, and counts the bytes that it is asked for, by usage."""

    def __init__(self, free, total, ops):
        super().__init__("A card", ops)
        self.sizes = Memory(total, free)
        self.asked = Counter()
        self.is_closed = False

    def memory(self):
        return self.sizes

    def alloc(self, nbytes, usage):
        self.asked[usage] += nbytes
        return super().alloc(nbytes, usage)

    def close(self):
        self.is_closed = True


@pytest.fixture
def card(monkeypatch):
    """Return card(free bytes): what backend `card` opens from then on; the last is `card.last`."""

    def install(free, total=32 * GB, kind="discrete", ops=tuple(OPS)):
        def opening(name, device=None):
            if name == "cpu":
                return open_device("cpu")
            install.last = Card(free, total, ops)
            install.last.info = DeviceInfo("card:0", "A card", kind)
            return None, install.last

        monkeypatch.setattr(loading, "open_device", opening)
        monkeypatch.setattr(first_run, "check", lambda *args, **options: None)

    return install


def refused(**options):
    with pytest.raises(OutOfMemory, match="CRT-3203") as caught:
        open_model(backend="card", **options)
    return caught.value


def need_of(context, card):
    """Return the bytes that a load asks a card for, weights included."""
    card(32 * GB)
    with load(backend="card", context=context):
        return WEIGHTS + card.last.asked[Usage.STATE]


def test_what_fits_to_the_byte_is_opened_and_a_byte_less_is_refused(card):
    need = need_of(512, card)
    card(need)
    open_model(backend="card", context=512).close()
    card(need - 1)
    refused(context=512)
    assert not card.last.asked and card.last.is_closed


def test_the_refusal_has_every_number(card):
    card(3 * 10**6, total=16 * GB)
    error = refused(context=512)
    assert error.what.startswith("the model in ")
    assert error.what.endswith(" does not fit on A card")
    assert "free 3.00 MB of 16.00 GB" in error.evidence
    assert f"weights {WEIGHTS / 1e6:.2f} MB" in error.evidence
    assert f"key and value cache for 512 tokens {512 * PER_TOKEN / 1e3:.1f} kB" in error.evidence
    need = need_of(512, card)
    assert f"it needs {need / 1e6:.2f} MB" in error.evidence


def test_remedies_come_by_their_effect(card):
    # nothing but smaller weights helps
    card(10**6, total=10**6)
    fix = refused(context=512).fix
    places = [fix.index(part) for part in ("clover-rt quantize", "--backend cpu", "--context")]
    assert places == sorted(places)
    assert "end other programs" not in fix
    # the cache is what is too large, and others hold most of the card
    assert 4096 * PER_TOKEN > WEIGHTS
    card(WEIGHTS, total=32 * GB)
    fix = refused(context=4096).fix
    parts = ("end other programs", "--backend cpu", "--context", "clover-rt quantize")
    places = [fix.index(part) for part in parts]
    assert places == sorted(places)
    assert fix.startswith(
        "the largest effect first: end other programs on the device, which hold 31.99 GB"
    )


def test_a_model_in_four_bits_is_not_told_to_become_one(card, tmp_path):
    quantise(None, tmp_path / "q4", "q4")
    card(10**5)
    with pytest.raises(OutOfMemory) as caught:
        open_model(tmp_path / "q4", backend="card", context=64)
    assert "quantize" not in caught.value.fix


@pytest.mark.parametrize("kind", ["cpu", "integrated"])
def test_memory_that_is_shared_with_the_host_is_not_judged(card, kind):
    card(10**5, kind=kind)
    open_model(backend="card", context=512).close()


def test_memory_that_is_not_known_is_not_judged(card):
    card(0, total=0)
    open_model(backend="card", context=512).close()


def test_weights_that_the_host_keeps_take_no_room_on_the_card(card):
    card(10**6, ops=("rope", "attend"))
    open_model(backend="card", context=64).close()


def test_what_only_the_reference_runs_is_left_to_binding(card, monkeypatch):
    card(10**5, ops=("rope",))
    host = open_device("cpu")[1]
    host.kernels = {}
    own = loading.open_device
    monkeypatch.setattr(
        loading, "open_device", lambda name, *device: (None, host) if name == "cpu" else own(name)
    )
    open_model(backend="card", context=64).close()


def test_fit_counts_what_a_load_refuses(card):
    card(10**6)
    report = fits(backend="card", context=512)
    (here,) = (b for b in report["budgets"] if b["name"] == "this machine")
    assert not here["fits"] and report["devices"][0]["mapped"] == WEIGHTS
