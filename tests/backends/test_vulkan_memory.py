"""What the shaders load and store of weights, cache and state, counted word by word on lavapipe.

A model of the release's shape runs: its counts of experts, of heads that share a key and of rows,
which decide how often something is read, at widths that are quick. What is counted is carried over
to the release's widths, whose grids only have more columns, and to a long prefix, whose parts are
read as often as those of a short one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clover_rt.fit.weights import EXPERTS
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.ops import OPS
from clover_rt.plan import Plan
from clover_rt.spec import Format, HostWeight, Kind, Pass, Precision, Segment, Wanted
from clover_rt_conformance.bound import Bound
from tests.backends.vulkan_devices import open_vulkan
from tests.backends.vulkan_models import BENCHMARKS, LAYERS, NARROW, Model, packed, pages, plan_of

if TYPE_CHECKING:
    from tests.backends.vulkan_counting import CountingDevice

# the release has ten times as many layers
TIMES, GROUP = 10, 32
ONCE = ("embed", "head", "counts", "suppressed")
SHARED = ("shared_gate", "shared_up", "shared_down")
# what a pass sees, and the prefix that it is carried over to
PREFIX, LONG = 160, 16384
FIELDS = ("codes", "scale", "zero")
CACHE, MEMORY, TABLES = ("k_pool", "v_pool"), ("S", "ring"), ("counts", "suppressed")
CLASSES = {"codes": "weights", "scale": "scales", "zero": "scales"}
CLASSES |= dict.fromkeys(CACHE, "cache") | dict.fromkeys((*MEMORY, *TABLES), "state")
# a kind of weight or state, and the field of it
Key = tuple[str, str]


@dataclass(frozen=True)
class Loaded:
    """The narrow model on a device that counts, and the release's configuration and weights."""

    device: CountingDevice
    plan: Plan
    kinds: Mapping[str, str]
    narrow: Model
    release: Model

    @property
    def cache_item(self) -> int:
        """Return the bytes of a number in the cache."""
        places = self.plan.state_places.items()
        pool = next(self.plan.resident(n, place) for n, place in places if field_of(n) in CACHE)
        return pool.dtype.itemsize


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """Return the narrow model, and as many layers of the release, without data."""
    narrow = packed(tmp_path_factory.mktemp("narrow"), NARROW)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        engines, roofline = (importlib.import_module(name) for name in ("engines", "roofline"))
        config, weights = roofline.release(LAYERS)
        return narrow, (config, engines.as_stored(weights, Format.Q4, GROUP))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((Precision.EXACT, 64), id="exact"),
        pytest.param((Precision.EXACT, 32), id="exact-narrow", marks=pytest.mark.full),
        pytest.param((Precision.FAST, 64), id="fast", marks=pytest.mark.full),
    ],
)
def loaded(
    request: pytest.FixtureRequest,
    models: tuple[Model, Model],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Loaded]:
    precision, step = request.param
    opened = open_vulkan(cache=tmp_path_factory.mktemp("cache"))
    # behind `open_vulkan`, which says what is missing where there is no Vulkan
    from tests.backends.vulkan_counting import CountingDevice

    narrow, release = models
    device = CountingDevice(opened, lambda what: field_of(what) in CLASSES)
    # cards that run more work-items in step share keys among more rows
    device.limits = replace(device.limits, subgroup=step)
    plan = plan_of(narrow, device, precision)
    for name, place in plan.state_places.items():
        device.name_memory(plan.resident(name, place).buffer, name)
    kinds = {weight.name: kind_of(name) for name, weight in narrow[1].items()}
    yield Loaded(device, plan, kinds, narrow, release)
    device.close()


def field_of(what: str) -> str:
    """Return the field of the memory of a weight or a state: `codes of NAME`, `layers.0.S`."""
    field = what.split(" of ")[0]
    return field if field in FIELDS else what.rsplit(".", 1)[-1]


def kind_of(name: str) -> str:
    last = name.rsplit(".", 1)[-1]
    if last in (*EXPERTS, *SHARED):
        return "experts" if last in EXPERTS else "shared"
    return last if last in ONCE else "dense"


def least(
    config: ModelConfig, weights: Mapping[str, HostWeight], rows: int, experts: float, kv: int
) -> dict[Key, float]:
    """Return the least bytes of a pass of LAYERS layers by the model's sizes.

    experts  that a layer uses;  kv  bytes of a number in the cache
    Vectors, taps and norms are left out: groups read them as they read rows, and caches serve both.
    """
    out: dict[Key, float] = {}
    for name, weight in weights.items():
        if len(weight.shape) < 2 or name.rsplit(".", 1)[-1] in ("conv", "right"):
            continue
        kind = kind_of(name)
        share = {"experts": experts, "embed": rows}.get(kind, weight.shape[0]) / weight.shape[0]
        for field in FIELDS[:2]:
            arrays = [getattr(piece, field) for piece in weight.pieces]
            if arrays[0] is not None:
                nbytes = share * sum(a.nbytes for a in arrays)
                out[kind, field] = out.get((kind, field), 0.0) + nbytes
    c = config
    commits = rows == 1
    memories = sum(kind is LayerType.GDN for kind in c.layer_types)
    sizes = {
        "S": 4 * memories * c.value_heads * c.key_dim * c.value_dim,
        "ring": 4 * memories * (c.conv_kernel - 1) * c.conv_channels,
    }
    out |= {(name, name): float(size * (1 + commits)) for name, size in sizes.items()}
    numbers = (len(c.layer_types) - memories) * c.kv_heads * c.head_dim
    out |= {(name, name): float(numbers * kv * (PREFIX + commits)) for name in CACHE}
    out["counts", "counts"] = 4.0 * c.vocab_size
    out["suppressed", "suppressed"] = c.vocab_size / 8
    return out


def counted(at: Loaded, rows: int) -> tuple[dict[Key, Any], float]:
    """Run a pass behind a prefix; return what it moved, and the experts that a layer used."""
    from tests.backends.vulkan_counting import Counts, Moved

    at.device.counts, at.device.routes = Counts(Moved), []
    wanted = tuple(Wanted(row, row + 1) for row in range(rows))
    segment = Segment(Kind.COMMIT if rows == 1 else Kind.PREVIEW, 1, 0, rows, PREFIX)
    at.plan.run(Pass((segment,), tuple(range(rows)), wanted=wanted, page_deltas=pages(1)))
    out: dict[Key, Any] = {}
    for (shader, what), moved in at.device.counts.items():
        field = field_of(what)
        kind = next((k for name, k in at.kinds.items() if name in what), field)
        out.setdefault((kind, field), Moved()).add(moved)
        print(f"  {shader} {what}: {moved}")
    top = at.narrow[0].experts_per_token
    routes = [set(ids[: rows * top].tolist()) - {-1} for ids in at.device.routes]
    assert len(routes) == LAYERS
    return out, sum(map(len, routes)) / LAYERS


@pytest.mark.parametrize("rows", [pytest.param(1, id="token"), pytest.param(32, id="preview")])
def test_weights_cache_and_state_are_moved_about_once(loaded: Loaded, rows: int) -> None:
    """What the items of a group ask for twice counts once: they run at one time, from one cache."""
    found, experts = counted(loaded, rows)
    small, large = (
        least(*model, rows, experts, loaded.cache_item) for model in (loaded.narrow, loaded.release)
    )
    assert found.keys() == small.keys()
    totals: dict[str, list[float]] = {}
    for key, nbytes in small.items():
        ratio = found[key].moved / nbytes
        assert ratio >= 1, key
        times = (1 if key[0] in ONCE else TIMES) * large[key]
        times *= LONG / PREFIX if key[0] in CACHE else 1
        asked = found[key].asked / nbytes
        print(f"{rows} rows, {key}: moved {ratio:.3f}, asked {asked:.3f} of {times:.4g} bytes")
        for name in (CLASSES[key[1]], "all"):
            total = totals.setdefault(name, [0.0, 0.0, 0.0])
            for i, value in enumerate((ratio * times, asked * times, times)):
                total[i] += value
    for name, (moved, asked, needed) in totals.items():
        told = f"moved {moved / needed:.4f}, asked {asked / needed:.4f}"
        print(f"{rows} rows, {experts} experts, {name}: {needed:.4g} bytes, {told}")
    moved, _, needed = totals["all"]
    assert moved <= 1.15 * needed


@pytest.mark.parametrize(
    ("name", "rows", "tiles"), [("T=1,N=257,K=192", 272, 1), ("T=130,N=96,K=192", 96, 5)]
)
def test_what_is_counted_is_what_a_formula_says(
    name: str, rows: int, tiles: int, tmp_path: Path
) -> None:
    """A weight is read once for each tile of 32 rows, and the sums are those of an uncounted run.

    rows  of the weight that the items ask for: 16 a group, the last again where there are no more
    """
    opened = open_vulkan(cache=tmp_path)
    from tests.backends.vulkan_counting import CountingDevice

    spec = OPS["linear"]
    case = next(c for c in spec.cases() if c.id == f"linear/q4-32/{name}")
    inputs = case.inputs(0)
    with Bound(opened, spec, case, Precision.EXACT, inputs) as plain:
        want = plain.run()["y"]
    device = CountingDevice(opened, lambda what: field_of(what) in FIELDS)
    with Bound(device, spec, case, Precision.EXACT, inputs) as noted:
        assert noted.run()["y"].tobytes() == want.tobytes()
    found = {field_of(what): moved for (_, what), moved in device.counts.items()}
    device.close()
    codes = inputs["w"].codes
    assert found["codes"].moved == tiles * codes.nbytes
    if tiles == 1:
        blocks = rows * codes.shape[1] // 16
        # each item that has a block reads the word that has its scale
        assert (found["codes"].asked, found["scale"].asked) == (16 * blocks, 4 * blocks)
