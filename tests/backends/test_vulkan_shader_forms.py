"""Shaders that no primitive of the suite takes: rows in 8 bits, and several primitives at once.

And the forms of passes of 32 rows, of which the usual lane has few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clover_rt.ops import OPS
from clover_rt.ops.common import encode
from clover_rt.spec import Precision, Weight
from clover_rt_conformance.bound import Bound
from clover_rt_conformance.harness import try_case
from tests.backends.vulkan_devices import open_vulkan

Array = np.ndarray
GROUPS = {"q8": 32, "q4-64": 64}
FORMATS = {"f32": 0, "bf16": 2, "q8": 3, "q4-64": 4}
EPS = 1e-6


class Shaders:
    """Calls shaders by name with arrays; `buffers` has what they wrote."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def put(self, array: Array) -> Any:
        data = np.ascontiguousarray(array)
        buffer = self.device.allocate(max(data.nbytes, 16), "a test's array")
        self.device.upload(buffer, 0, data)
        return buffer

    def call(
        self,
        name: str,
        groups: tuple[int, ...],
        buffers: Mapping[str, Any],
        constants: Mapping[str, int],
        **push: float,
    ) -> None:
        from clover_rt_vulkan.device import Launches
        from clover_rt_vulkan.driver import Dispatch

        shader = self.device.library.shaders[name]
        values = {f"{b}_at": 0 for b in shader.buffers} | push
        words = [
            np.float32(values[key]).tobytes()
            if kind == "float"
            else np.uint32(values[key]).tobytes()
            for key, kind in shader.push
        ]
        ids = {shader.constants[key]: value for key, value in constants.items()}
        bindings = [self.device.binding(buffers[b], b in shader.written) for b in shader.buffers]
        grid = (*groups, 1, 1)[:3]
        pipeline = self.device.pipeline(shader, ids)
        dispatch = Dispatch(name, pipeline, grid, tuple(bindings), b"".join(words))
        Launches(self.device, [dispatch])()

    def get(self, buffer: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        out = np.empty(shape, dtype)
        self.device.download(buffer, 0, out)
        return out


@pytest.fixture(scope="module")
def shaders() -> Iterator[Shaders]:
    device = open_vulkan()
    yield Shaders(device)
    device.close()


def table(rows: int, words: int = 16) -> Array:
    out = np.zeros(words, np.int32)
    out[1] = rows
    return out


def rounded(x: Array) -> Array:
    """Return rows rounded to 8 bits in blocks of 32 columns, as float64."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    codes = np.rint(blocks / np.where(scale == 0, 1, scale))
    return (codes * scale).reshape(x.shape).astype(np.float64)


def weight_buffers(shaders: Shaders, name: str, weight: Weight) -> dict[str, Any]:
    none = np.zeros(4, np.uint32)
    fields = {"": weight.codes, "_scale": weight.scale, "_zero": weight.zero}
    return {name + end: shaders.put(none if a is None else a) for end, a in fields.items()}


def weight_constants(name: str, fmt: str, weight: Weight) -> dict[str, int]:
    chosen = {"FORMAT": FORMATS[fmt], "GROUP": GROUPS.get(fmt, 32)}
    chosen["ZERO"] = int(weight.zero is not None)
    return {f"{name.upper()}_{key}": value for key, value in chosen.items()}


def tiles(form: str, rows: int, columns: int) -> tuple[int, int]:
    width, height = (16, 4) if form == "few" else (64, 32)
    return -(-columns // width), -(-rows // height)


def rows_of(form: str) -> dict[str, int]:
    return {"ROWS": 4} if form == "few" else {}


def quantise(shaders: Shaders, params: Any, x: Any, rows: int, k: int, fmt: str) -> tuple[Any, Any]:
    """Return the codes and scales of rows as the shader writes them."""
    codes = shaders.put(np.zeros(rows * k // 4, np.uint32))
    scales = shaders.put(np.zeros((rows, k // 32, 2), np.float32))
    buffers = {"params": params, "x": x, "codes": codes, "scales": scales}
    groups = (-(-k // 32 // 64), rows)
    shaders.call("quantise_rows", groups, buffers, {"NIBBLES": int(fmt != "q8")}, K=k, each=1)
    return codes, scales


@pytest.mark.parametrize("fmt", ["q8", "q4-64"])
@pytest.mark.parametrize("form", ["few", "many"])
def test_rows_in_8_bits_give_the_exact_integer_dots(shaders: Shaders, form: str, fmt: str) -> None:
    rows, n, k = (3, 37, 192) if form == "few" else (33, 65, 256)
    rng = np.random.default_rng([rows, FORMATS[fmt]])
    x = rng.standard_normal((rows, k)).astype(np.float32)
    # a block of zeros has no scale
    x[1, :32] = 0
    weight = encode(rng.standard_normal((n, k)).astype(np.float32), fmt, zero_point=True)
    params, y = shaders.put(table(rows)), shaders.put(np.full((rows, n), np.nan, np.float32))
    codes, scales = quantise(shaders, params, shaders.put(x), rows, k, fmt)
    given = {"params": params, "x": codes, "x_scales": scales, "residual": y, "y": y}
    shaders.call(
        f"linear_{form}_int8",
        tiles(form, rows, n),
        given | weight_buffers(shaders, "w", weight),
        weight_constants("w", fmt, weight) | rows_of(form),
        K=k,
        N=n,
        first=0,
        count=n,
    )
    want = rounded(x) @ weight.values().astype(np.float64).T
    # only the sums of blocks are float32
    np.testing.assert_allclose(
        shaders.get(y, (rows, n)), want, rtol=0, atol=1e-6 * np.abs(want).max()
    )


def test_an_experts_hidden_rows_can_be_rounded_too(shaders: Shaders) -> None:
    rows, d, f = 3, 128, 64
    rng = np.random.default_rng(3)
    x = rng.standard_normal((rows, d)).astype(np.float32)
    gate, up = (
        encode(rng.standard_normal((f, d)).astype(np.float32) * d**-0.5, "q4-64") for _ in range(2)
    )
    params, hidden = shaders.put(table(rows)), shaders.put(np.zeros((rows, f), np.float32))
    codes, scales = quantise(shaders, params, shaders.put(x), rows, d, "q4-64")
    given = {"params": params, "tiles": params, "order": params, "x": codes, "x_scales": scales}
    shaders.call(
        "hidden_few_int8",
        tiles("few", rows, f),
        given
        | {"hidden": hidden}
        | weight_buffers(shaders, "gate", gate)
        | weight_buffers(shaders, "up", up),
        weight_constants("gate", "q4-64", gate)
        | weight_constants("up", "q4-64", up)
        | {"ROWS": 4, "GROUPED": 0},
        top_k=1,
        D=d,
        F=f,
        first=0,
        count=1,
    )
    g, u = (rounded(x) @ w.values().astype(np.float64).T for w in (gate, up))
    want = g / (1 + np.exp(-g)) * u
    np.testing.assert_allclose(shaders.get(hidden, (rows, f)), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("form", "rows", "k", "parts", "fmt", "other", "gates"),
    [
        ("few", 3, 192, (37, 20, 16, 9), "bf16", None, 0),
        ("many", 33, 256, (65, 33), "q4-64", None, 0),
        ("few", 1, 96, (8, 8), "f32", None, 1),
        ("many", 40, 60, (7, 9), "f32", None, 1),
        ("few", 2, 128, (5, 5, 33, 20), "bf16", "q4-64", 1),
        ("many", 33, 128, (5, 5, 33, 70), "f32", "q8", 1),
    ],
)
def test_project_is_norm_and_products_and_gates(
    shaders: Shaders,
    form: str,
    rows: int,
    k: int,
    parts: tuple[int, ...],
    fmt: str,
    other: str | None,
    gates: int,
) -> None:
    """With `other` the last two products have a weight of their own, in that format."""
    rng = np.random.default_rng([rows, k])
    n = sum(parts)
    own = n if other is None else sum(parts[:2])
    x = (rng.standard_normal((rows, k)) * 3).astype(np.float32)
    norm, bias = (rng.standard_normal(m).astype(np.float32) for m in (k, n))
    rate = -np.exp(rng.standard_normal(n)).astype(np.float32)
    values = rng.standard_normal((n, k)).astype(np.float32) * k**-0.5
    weight, more = (
        encode(values[:own], fmt),
        encode(values[own:] if other else values, other or fmt),
    )
    y = shaders.put(np.full(rows * n, np.nan, np.float32))
    given = {"x": x, "norm": norm, "rate": rate, "bias": bias, "params": table(rows)}
    ends = [*np.cumsum(parts).tolist(), n, n, n]
    columns, height = tiles(form, rows, own)
    shaders.call(
        f"project_{form}",
        (columns + tiles(form, rows, n - own)[0], height),
        {name: shaders.put(a) for name, a in given.items()}
        | weight_buffers(shaders, "w", weight)
        | weight_buffers(shaders, "other", more)
        | {"y": y},
        weight_constants("w", fmt, weight)
        | weight_constants("other", other or fmt, more)
        | rows_of(form)
        | {"GATES": gates, "RAGGED": int(k % 8 != 0), "HAS_OTHER": int(other is not None)},
        K=k,
        N=n,
        end0=ends[0],
        end1=ends[1],
        end2=ends[2],
        first=0,
        count=own,
        other_first=own,
        other_count=n - own,
        T=rows,
        eps=EPS,
    )
    sizes = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS)
    stored = weight.values() if other is None else np.vstack([weight.values(), more.values()])
    sums = (x / sizes * norm) @ stored.astype(np.float64).T
    want = np.split(sums, np.cumsum(parts)[:-1], axis=1)
    if gates:
        want[0] = rate[: parts[0]] * np.logaddexp(0, want[0] + bias[: parts[0]])
        want[1] = 1 / (1 + np.exp(-want[1]))
    found = np.split(shaders.get(y, (rows * n,)), rows * np.cumsum(parts)[:-1])
    for got, value in zip(found, want, strict=True):
        np.testing.assert_allclose(got.reshape(value.shape), value, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("is_bf16", [0, 1])
def test_heads_are_normalised_turned_and_kept_but_for_previews(
    shaders: Shaders, is_bf16: int
) -> None:
    """A commit of 5 rows at 70, in pages 3 and 2, and a preview of 3 rows at 9 of another slot."""
    heads, groups, k, half = 4, 2, 32, 8
    rows, width = 8, groups * k
    rng = np.random.default_rng(5)
    params = table(rows, 64)
    params[2] = 2
    params[8:24] = [0, 1, 0, 5, 70, 0, 0, 0, 1, 0, 5, 3, 9, 0, 0, 0]
    params[24:32] = [0] * 5 + [1] * 3
    places = np.array([70, 71, 72, 73, 74, 9, 10, 11])
    q, key, v = (rng.standard_normal((rows, m * k)).astype(np.float32) for m in (heads, 2, 2))
    q_norm, k_norm = (rng.standard_normal(k).astype(np.float32) for _ in range(2))
    turns = rng.standard_normal((100, half))
    angles = np.stack([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32)
    pages = np.array([[0, 1], [3, 2]], np.int32)
    pool = np.zeros((4 * 64, width), ml_dtypes.bfloat16 if is_bf16 else np.float32)
    arrays = {"params": params, "q_raw": q, "k_raw": key, "v": v, "q_norm": q_norm}
    arrays |= {"k_norm": k_norm, "angles": angles, "page_table": pages}
    arrays |= {"q": q * np.nan, "k": key * np.nan, "k_pool": pool, "v_pool": pool}
    buffers = {name: shaders.put(a) for name, a in arrays.items()}
    shaders.call(
        "heads",
        (heads + 2 * groups, rows),
        buffers,
        {"KEY": k, "KV_BF16": is_bf16},
        segments=8,
        row_segment=24,
        H=heads,
        G=groups,
        r=half,
        slot_pages=2,
        eps=EPS,
    )

    def turned(x: Array, norm: Array) -> Array:
        each = x.reshape(rows, -1, k).astype(np.float64)
        each = each / np.sqrt((each**2).mean(axis=-1, keepdims=True) + EPS) * norm
        cos, sin = np.cos(turns)[places][:, None], np.sin(turns)[places][:, None]
        low, high, rest = each[..., :half], each[..., half : 2 * half], each[..., 2 * half :]
        out = np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)
        return out.reshape(rows, -1)

    want_q, want_k = turned(q, q_norm), turned(key, k_norm)
    bound = {"rtol": 4e-6, "atol": 4e-6}
    np.testing.assert_allclose(shaders.get(buffers["q"], q.shape), want_q, **bound)
    np.testing.assert_allclose(shaders.get(buffers["k"], key.shape), want_k, **bound)
    kept = 2 * 64 + np.arange(6, 11)
    # to 8 bits where the cache is bfloat16
    loose = {"rtol": 2.0**-8, "atol": 4e-6} if is_bf16 else bound
    for name, want in (("k_pool", want_k), ("v_pool", v)):
        got = shaders.get(buffers[name], pool.shape, pool.dtype).astype(np.float64)
        np.testing.assert_allclose(got[kept], want[:5], **loose)
        assert not np.delete(got, kept, axis=0).any()


@pytest.mark.parametrize(
    ("name", "most", "step", "items"),
    [
        ("attend/H=8,K=256/x300/commit32+preview32", 1024, 64, 1024),
        ("attend/H=8,K=256/x1/commit65@63", 1024, 32, 512),
        ("attend/H=8,K=256/x1/preview32@0", 300, 64, 256),
        ("attend/H=3,K=20/x1/preview32", 1024, 64, 128),
        ("attention/bf16/commit32+preview32", 1024, 64, 512),
    ],
)
def test_a_block_attends_in_groups_as_large_as_the_device_has(
    shaders: Shaders, name: str, most: int, step: int, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four work-items a query vector; 1,024 only where 64 run in step."""
    device = shaders.device
    monkeypatch.setattr(device, "limits", replace(device.limits, items=most, subgroup=step))
    pipeline, found = device.pipeline, {}

    def noted(shader: Any, constants: Mapping[int, int]) -> Any:
        found[shader.name] = constants
        return pipeline(shader, constants)

    monkeypatch.setattr(device, "pipeline", noted)
    spec = OPS[name.partition("/")[0]]
    case = next(c for c in spec.cases() if c.id == name)
    verdict = try_case(device, spec, case, Precision.EXACT, 0, 2)
    assert [str(problem) for problem in verdict.problems] == []
    assert "attend" not in found
    assert found["attend_many"][device.library.shaders["attend_many"].constants["ITEMS"]] == items


@pytest.mark.parametrize("name", ["moe/q4-32/p=0.8/preview32", "moe/bf16/p=1/commit8"])
def test_tiles_of_eight_rows_give_the_bits_of_tiles_of_four(
    shaders: Shaders, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 rows an expert has eight on average, some more."""
    from clover_rt_vulkan.kernels import moe

    device, spec = shaders.device, OPS["moe"]
    case = next(c for c in spec.cases() if c.id == name)
    assert try_case(device, spec, case, Precision.EXACT, 0, 2).problems == []
    found = []
    for form in (moe.EIGHT, moe.FEW):
        monkeypatch.setattr(moe, "EIGHT", form)
        with Bound(device, spec, case, Precision.EXACT, case.inputs(0)) as bound:
            found.append(bound.run()["y"])
    assert found[0].tobytes() == found[1].tobytes()
