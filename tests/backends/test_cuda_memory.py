"""What the kernels read and write, in Triton's interpreter: how far away, and how many bytes.

Far offsets are offsets into files of holes, so nothing large is allocated. Bytes are counted where
the interpreter loads and stores, for the lanes that a mask leaves, by the tensor they fall into.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from clover_rt.backend import Tensor
from clover_rt.ops import OPS
from clover_rt.spec import (
    PAGE_ROWS,
    Format,
    HostWeight,
    Kind,
    Pass,
    Precision,
    Role,
    Segment,
    Signature,
    StepParams,
    TableClass,
    Wanted,
    Weight,
)
from clover_rt_cuda.ahead import hot, signature
from clover_rt_cuda.backend import INTERPRET, INTERPRETER
from clover_rt_cuda.kernel import DeviceWeight

Array = np.ndarray
EXACT, FAST = Precision.EXACT, Precision.FAST
HOLES_FROM = 1 << 26
# one more than 32 bits of an index count
BEYOND = 1 << 31


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Callable[..., Any]]:
    """Return a function that calls another one in a process where triton interprets kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INTERPRET, "1")
        patch.setenv("TRITON_INTERPRET", "1")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield lambda function, *args: pool.submit(function, *args).result()


def memory(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros; where there are many, a file of holes."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if nbytes < HOLES_FROM:
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile() as file:
        raw = np.memmap(file, np.uint8, "w+", shape=(nbytes,))
    return np.asarray(raw).view(dtype).reshape(shape)


class Bound:
    """An operation bound on the interpreter: operands as arrays over the device's memory."""

    def __init__(self, sig: Signature, work: Pass, weights: Mapping[str, HostWeight] | None = None):
        from clover_rt_cuda.device import CudaDevice, TorchBuffer, longest_prefix

        self.sig, spec, axes = sig, OPS[sig.op], dict(sig.axes)
        self.device = CudaDevice(INTERPRETER)
        self.kernel = self.device.kernels[sig.op]
        self.arrays: dict[str, Array] = {}
        tensors = {}

        def tensor(name: str, array: Array) -> Tensor:
            self.arrays[name] = array
            data = torch.from_numpy(array.reshape(-1).view(np.uint8))
            return Tensor(TorchBuffer(data), array.dtype, array.shape)

        for o in spec.operands:
            if o.role is Role.PARAMS:
                params = StepParams(sig.layout)
                params.write(work)
                self.device.prefix = longest_prefix(params.buffer)
                tensors[o.name] = tensor(o.name, params.buffer)
            elif o.role is not Role.WEIGHT and sig.has(o.name):
                tensors[o.name] = tensor(
                    o.name, memory(spec.shape(o.name, axes), sig.dtype(o.name))
                )
        self.tensors = tensors
        self.scratch: Tensor | None = None
        if nbytes := self.kernel.scratch(sig):
            self.scratch = tensor("scratch", memory((nbytes,), np.uint8))
        self.prepared = self.kernel.prepare(sig.static(), weights) if weights else {}

    def run(self) -> None:
        self.kernel.bind(self.sig, self.tensors, self.prepared, self.scratch)()


def commit(slot: int, rows: int = 1, position: int = 0, kind: Kind = Kind.COMMIT) -> Pass:
    wanted = tuple(Wanted(i, i + 1) for i in range(rows))
    return Pass((Segment(kind, slot, 0, rows, position),), (1,) * rows, wanted=wanted)


@dataclass(frozen=True)
class Away:
    """An operation on one slot or page, near the start of its memory and far behind.

    axis    "slots" or "pages"
    floats  numbers of the largest state of one of them
    """

    op: str
    axes: Mapping[str, int]
    axis: str
    floats: int
    work: Callable[[int], Pass]
    table: TableClass = TableClass.COMMIT
    attrs: Mapping[str, Any] = field(default_factory=dict)


def advance(slot: int) -> Pass:
    return Pass(advances=((slot, 1),))


def verify(slot: int) -> Pass:
    return commit(slot, kind=Kind.VERIFY)


MEMORY = {"T": 1, "G": 1, "H": 2, "K": 128, "V": 128, "Q": 1}
CACHE = {"T": 1, "G": 2, "K": 256, "slots": 1, "slot_pages": 1}
FAR = {
    "block_scan": Away("block_scan", MEMORY, "slots", 2 * 128 * 128, commit),
    "chunks of block_scan": Away(
        "block_scan", MEMORY | {"T": 32}, "slots", 2 * 128 * 128, lambda slot: commit(slot, 32)
    ),
    "advance": Away("advance", MEMORY | {"C": 64, "J": 4}, "slots", 2 * 128 * 128, advance),
    "block_memory": Away(
        "block_memory",
        {a: n for a, n in MEMORY.items() if a != "Q"},
        "slots",
        2 * 128 * 128,
        lambda slot: commit(slot, kind=Kind.PREVIEW),
        TableClass.PREVIEW,
    ),
    "causal_conv": Away(
        "causal_conv", {"T": 1, "C": 8192, "J": 4, "Q": 1}, "slots", 3 * 8192, commit
    ),
    "tape of a verify": Away(
        "causal_conv", {"T": 1, "C": 8192, "J": 2, "Q": 4}, "slots", 4 * 8192, verify,
        TableClass.VERIFY,
    ),
    "kv_append": Away("kv_append", CACHE, "pages", PAGE_ROWS * 512, lambda page: commit(0)),
    "attend": Away(
        "attend", CACHE | {"H": 2}, "pages", PAGE_ROWS * 512,
        lambda page: commit(0, position=40), attrs={"heads": 2},
    ),
}  # fmt: skip


def run_at(name: str, count: int) -> dict[str, Array]:
    """Run with `count` slots or pages, on the last of them; return what was written there."""
    away, place = FAR[name], count - 1
    spec = OPS[away.op]
    axes = {**away.axes, away.axis: count}
    rng = np.random.default_rng(7)
    weights = {
        o.name: HostWeight.of(Weight(Format.F32, shape, rng.normal(size=shape).astype(np.float32)))
        for o in spec.weights
        for shape in (spec.shape(o.name, axes),)
    }
    sig = signature(away.op, axes, away.attrs, "f32", EXACT, away.table)
    bound = Bound(sig, away.work(place), weights)
    parts = {}
    for o in spec.operands:
        if o.role in (Role.PARAMS, Role.WEIGHT):
            continue
        whole = bound.arrays[o.name]
        if o.name == "page_table":
            whole[...] = place
            continue
        first = o.shape[0]
        rows = PAGE_ROWS if first.startswith("pages") else 1
        inside = first.startswith(away.axis)
        part = whole[place * rows : (place + 1) * rows] if inside else whole
        part[...] = rng.normal(size=part.shape) * 0.3
        parts[o.name] = part
    bound.run()
    written = [o.name for o in spec.operands if o.is_written]
    return {name: np.array(parts[name]) for name in written}


@pytest.mark.parametrize("name", FAR)
def test_a_slot_or_page_beyond_32_bits_gives_the_bits_of_a_near_one(
    name: str, interpreted: Callable[..., Any]
) -> None:
    near = interpreted(run_at, name, 2)
    far = interpreted(run_at, name, BEYOND // FAR[name].floats + 2)
    assert near.keys() == far.keys()
    for operand, array in near.items():
        assert array.any(), operand
        np.testing.assert_array_equal(array, far[operand], err_msg=operand)


def run_expert(experts: int) -> Array:
    """Run one row through the last of some q4 experts; return its output."""
    axes = {"T": 1, "E": experts, "R": 1, "D": 512, "F": 64}
    sig = signature("expert_gemm", axes, {"top_k": 1}, "q4-64", EXACT)
    rng = np.random.default_rng(7)
    bound = Bound(sig, commit(0))
    bound.arrays["x"][...] = rng.normal(size=(1, 512))
    bound.arrays["offsets"][-1] = 1
    for name, fmt, group in sig.formats:
        shape = OPS["expert_gemm"].shape(name, axes)
        codes = memory((*shape[:-1], shape[-1] // 2), np.uint8)
        scale = memory((*shape[:-1], shape[-1] // group), np.float16)
        codes[-1] = rng.integers(0, 256, codes.shape[1:])
        scale[-1] = 0.01
        flat = (torch.from_numpy(a.reshape(-1)) for a in (codes, scale))
        bound.prepared[name] = DeviceWeight(fmt.value, group, *flat)
    bound.run()
    return np.array(bound.arrays["y"])


def test_an_expert_beyond_32_bits_gives_the_bits_of_a_near_one(
    interpreted: Callable[..., Any],
) -> None:
    """The last of these experts starts at byte 2^32 of its codes."""
    near = interpreted(run_expert, 2)
    far = interpreted(run_expert, 2 * BEYOND // (64 * 512 // 2) + 1)
    assert near.any()
    np.testing.assert_array_equal(near, far)


# sizes that columns of a weight and heads of a state come in multiples of; what decides how often
# something is read (rows, experts, heads of a group, columns of a head) is that of the release
SMALL = {
    "gdn": {"D": 128, "G": 2, "H": 4, "C": 1024},
    "attention": {"D": 128, "G": 1, "H": 8, "P": 1024, "slot_pages": 4, "pages": 4},
    "moe": {"D": 128, "F": 64, "Fs": 64},
    "confidence_topk": {"D": 128, "vocab": 1024},
}
LAYERS = {"gdn": 30, "attention": 10, "moe": 40, "confidence_topk": 1}
SHORT, LONG = 160, 4096
CACHES = ("k_pool", "v_pool")


def of_release(op: str, rows: int) -> Signature:
    table = TableClass.COMMIT if rows == 1 else TableClass.PREVIEW
    return next(s for s in hot(rows, "q4-64", FAST, table) if s.op == op)


def shrunk(op: str, rows: int, prefix: int = SHORT) -> Signature:
    sig, small = of_release(op, rows), dict(SMALL[op])
    if op == "attention" and prefix > SHORT:
        pages = prefix // PAGE_ROWS + 1
        small |= {"P": 2 * prefix, "slot_pages": pages, "pages": pages}
    return replace(sig, axes=tuple(sorted({**dict(sig.axes), **small}.items())))


def random_weights(sig: Signature) -> dict[str, HostWeight]:
    rng, out = np.random.default_rng(3), {}
    for name, fmt, group in sig.formats:
        shape = OPS[sig.op].shape(name, dict(sig.axes))
        if fmt is Format.Q4:
            codes = rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), np.uint8)
            scale = np.full((*shape[:-1], shape[-1] // group), 0.02, np.float16)
            weight = Weight(fmt, shape, codes, scale, None, group)
        else:
            values = rng.normal(size=shape) * 0.1
            weight = Weight(fmt, shape, values.astype(ml_dtypes.bfloat16))
        out[name] = HostWeight.of(weight, name)
    return out


@contextmanager
def counting(spans: Mapping[str, torch.Tensor]) -> Iterator[Counter[str]]:
    """Count the bytes that are loaded and stored, by the name of what they belong to."""
    from triton.runtime.interpreter import InterpreterBuilder, _get_np_dtype

    spanned = sorted((t.data_ptr(), t.nbytes, name) for name, t in spans.items() if t.numel())
    starts = [start for start, _, _ in spanned]
    found: Counter[str] = Counter()

    def note(pointers: Any, mask: Any) -> None:
        live = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]
        if live.size:
            address = int(live.flat[0])
            start, nbytes, name = spanned[bisect_right(starts, address) - 1]
            size = np.dtype(_get_np_dtype(pointers.get_element_ty())).itemsize
            found[name if address < start + nbytes else "others"] += live.size * size

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counted_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        note(pointers, mask)
        return load(self, pointers, mask, *others)

    def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        note(pointers, mask)
        return store(self, pointers, value, mask, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", counted_store)
        yield found


def count(op: str, rows: int, prefix: int, arch: str) -> tuple[dict[str, int], int]:
    """Return the bytes that a pass moves of each operand, and how many experts it uses.

    arch  whose tuning table is used
    """
    from clover_rt_cuda.kernel import room
    from clover_rt_cuda.kernels import moe
    from clover_rt_cuda.tuning import Tuning

    sig = shrunk(op, rows, prefix)
    kind = Kind.COMMIT if rows == 1 else Kind.PREVIEW
    bound = Bound(sig, commit(1, rows, prefix, kind), random_weights(sig))
    bound.device.tuning = Tuning.of(arch)
    bound.arrays["h"][...] = np.random.default_rng(5).normal(size=bound.arrays["h"].shape)
    spans = {name: t.buffer.data for name, t in bound.tensors.items()}  # type: ignore[attr-defined]
    if bound.scratch is not None:
        spans["scratch"] = bound.scratch.buffer.data  # type: ignore[attr-defined]
    for name, made in bound.prepared.items():
        if isinstance(made, DeviceWeight):
            spans |= {f"{name}.codes": made.codes}
            spans |= {f"{name}.scale": made.scale} if made.scale is not None else {}
        else:
            parts = made if isinstance(made, tuple) else (made,)
            spans |= {f"vector {name} {i}": t for i, t in enumerate(parts) if t is not None}
    with counting(spans) as found:
        bound.run()
    experts = 0
    if op == "moe":
        ids = room(bound.scratch, *moe._counts(sig))[-3].view(torch.int32).numpy()
        experts = len(set(ids[: rows * sig["R"]]) - {-1})
    return dict(found), experts


def least(sig: Signature, rows: int, experts: int, prefix: int) -> dict[str, int]:
    """Return the bytes that must be moved of each operand at a signature's sizes."""
    axes = {**dict(sig.axes), "slots": 1, "pages": 1}
    spec, out = OPS[sig.op], {}
    for name, fmt, group in sig.formats:
        shape = spec.shape(name, axes)
        if len(shape) < 2 or name in ("conv", "right"):
            continue
        numbers = int(np.prod(shape))
        if name.startswith("expert_"):
            numbers = numbers // sig["E"] * experts
        out[f"{name}.codes"] = numbers // 2 if fmt is Format.Q4 else 2 * numbers
        if group:
            out[f"{name}.scale"] = 2 * numbers // group
    commits = rows == 1
    for o in spec.operands:
        if o.role in (Role.PARAMS, Role.WEIGHT) or not sig.has(o.name):
            continue
        size = int(np.prod(spec.shape(o.name, axes))) * sig.dtype(o.name).itemsize
        if o.name in ("S", "ring"):
            out[o.name] = size * (1 + commits)
        elif o.name in ("counts", "suppressed"):
            out[o.name] = size
        elif o.name in CACHES:
            out[o.name] = size // PAGE_ROWS * (prefix + commits)
    return out


@pytest.fixture(scope="module")
def counted(interpreted: Callable[..., Any]) -> Callable[..., Any]:
    """Return `count` on the interpreter, made once for the same arguments."""
    return cache(partial(interpreted, count))


@pytest.mark.parametrize("arch", ["sm_90", "gfx1201"])
@pytest.mark.parametrize(
    ("rows", "prefix"),
    [(1, SHORT), (32, SHORT), pytest.param(32, LONG, marks=pytest.mark.full)],
    ids=["token", "preview", "preview of a long text"],
)
def test_weights_cache_and_state_are_moved_about_once(
    rows: int, prefix: int, arch: str, counted: Callable[..., Any]
) -> None:
    """Counted at small widths, carried over to the release's, whose grids only have more columns.

    Norms, taps and gates of a head are vectors that every program reads, as it reads activations:
    caches serve both, and they are left out.
    """
    moved = needed = 0.0
    for op, layers in LAYERS.items():
        # only attention looks at the prefix, and only its tiles differ
        own = (prefix, arch) if op == "attention" else (SHORT, "interpreter")
        found, experts = counted(op, rows, *own)
        sigs = (shrunk(op, rows, own[0]), of_release(op, rows))
        small, large = (least(sig, rows, experts, own[0]) for sig in sigs)
        assert set(small) <= set(found)
        for name, nbytes in small.items():
            ratio = found[name] / nbytes
            print(f"{rows} {op} {name}: {ratio:.3f} of {large[name]} bytes")
            assert ratio >= (0.0 if name == "ring" else 1.0), name
            moved += layers * ratio * large[name]
            needed += layers * large[name]
    print(f"{rows} rows: {moved:.4g} of {needed:.4g} bytes: {moved / needed:.4f}")
    assert 1 <= moved / needed <= 1.15


@pytest.mark.full
@pytest.mark.parametrize(("arch", "times"), [("gfx1201", 1), ("gfx1151", 2), ("sm_90", 2)])
def test_a_preview_reads_the_cache_of_a_long_text_once_a_tile(
    arch: str, times: int, counted: Callable[..., Any]
) -> None:
    """All queries of a KV head are one tile, or two where one does not fit the registers.

    sm_90 has 65536 for a program, as many as the results of 32 rows of 8 heads alone are.
    """
    found, _ = counted("attention", 32, LONG, arch)
    needed = least(shrunk("attention", 32, LONG), 32, 0, LONG)
    ratios = [found[name] / needed[name] for name in CACHES]
    assert all(times <= ratio <= 1.15 * times for ratio in ratios), ratios
