"""Trials of a device itself: copies, and what a plan binds on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Device, Kernel, Prepared, Step, Tensor, Usage
from clover_rt.ops import OPS
from clover_rt.spec import HostWeight, Mismatch, Precision, Signature
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.bound import note
from clover_rt_conformance.harness import Verdict
from clover_rt_conformance.models.binding import plan_of, plan_on
from clover_rt_conformance.models.exact import TINY, generate
from clover_rt_conformance.models.placement import Partial
from clover_rt_conformance.trial import BOTH, Trial


def device_trials() -> Iterator[Trial]:
    """Yield the trials of copies and of bound operands."""
    exact = BOTH[:1]
    yield Trial("device/copies", "device", ("K-36",), _copies, precisions=exact)
    yield Trial(
        "device/copies-between-two",
        "device",
        ("K-36",),
        _copies,
        precisions=exact,
        needs="needs two devices in one process, and a plan uses one",
    )
    yield Trial("device/new-memory-is-zero", "device", ("K-33",), _zeroed, precisions=exact)
    yield Trial("device/bound-operands", "device", ("K-01", "K-02"), _operands)
    yield Trial("device/two-plans", "device", ("K-37",), _two_plans, precisions=exact)


def _copies(bench: Bench, precision: Precision, seed: int) -> Verdict:
    """Copy odd numbers of bytes at odd places, inside a buffer and between two."""
    device = bench.device
    rng = np.random.default_rng(seed)
    size = 4099
    want = [rng.integers(0, 256, size).astype(np.uint8) for _ in range(2)]
    buffers = [device.alloc(size, Usage.STATE) for _ in range(2)]
    for buffer, image in zip(buffers, want, strict=True):
        device.upload(buffer, 0, image)
    problems: list[Mismatch] = []
    moves = [(0, 0, 1, 0, size), (1, 7, 0, 1, 1), (0, 4, 0, 2051, 2047), (1, 1024, 0, 64, 1023)]
    for dst, at, src, start, count in moves:
        device.copy(buffers[dst], at, buffers[src], start, count)
        want[dst][at : at + count] = want[src][start : start + count].copy()
    part = rng.integers(0, 256, 333).astype(np.uint8)
    device.upload(buffers[0], 1001, part)
    want[0][1001:1334] = part
    for i, buffer in enumerate(buffers):
        got = np.zeros(size, np.uint8)
        device.download(buffer, 0, got)
        if not np.array_equal(got, want[i]):
            place = int(np.flatnonzero(got != want[i])[0])
            problems.append(note(f"buffer {i}", f"byte {place} of {size} differs after copies"))
        device.free(buffer)
    return Verdict("native", problems)


def _zeroed(bench: Bench, precision: Precision, seed: int) -> Verdict:
    """New memory is zero, also where it was used before."""
    device, problems = bench.device, []
    for i in range(3):
        buffer = device.alloc(10_000, Usage.STATE)
        got = np.ones(10_000, np.uint8)
        device.download(buffer, 0, got)
        if got.any():
            problems.append(note("buffer", f"allocation {i + 1} is not zeroed"))
        device.upload(buffer, 0, np.full(10_000, 255, np.uint8))
        device.free(buffer)
    return Verdict("native", problems)


class _Watched(Kernel):
    """A kernel, and a look at the operands that a plan binds it to."""

    def __init__(self, kernel: Kernel, seen: list[tuple[Signature, Mapping[str, Tensor]]]) -> None:
        self.kernel, self.seen = kernel, seen

    def numerics(self, sig: Signature) -> Any:
        return self.kernel.numerics(sig)

    def row_invariant(self, sig: Signature) -> bool:
        return self.kernel.row_invariant(sig)

    def supports(self, sig: Signature) -> str:
        return self.kernel.supports(sig)

    def scratch(self, sig: Signature) -> int:
        return self.kernel.scratch(sig)

    def prepared_bytes(self, sig: Signature) -> int:
        return self.kernel.prepared_bytes(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return self.kernel.prepare(sig, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        given = dict(operands) | ({} if scratch is None else {"scratch": scratch})
        self.seen.append((sig, given))
        return self.kernel.bind(sig, operands, prepared, scratch)


def _operands(bench: Bench, precision: Precision, seed: int) -> Verdict:
    """Look at every operand that a plan of the tiny model binds on this device."""
    device = Partial(bench.open(), ())
    device.kernels = dict(device.whole.kernels)
    seen: list[tuple[Signature, Mapping[str, Tensor]]] = []
    device.kernels = {op: _Watched(k, seen) for op, k in device.kernels.items()}
    plan = plan_on(TINY, device, precision)
    try:
        generate(plan, TINY, "short/release/diffusion_t03")
        problems = [p for sig, operands in seen for p in misplaced(device, sig, operands)]
        told = (f"{len(seen)} bindings looked at",)
        return Verdict("native", problems[:8], notes=told)
    finally:
        plan.close()


def misplaced(device: Device, sig: Signature, operands: Mapping[str, Tensor]) -> Iterator[Mismatch]:
    """Yield what a kernel's operands must not be: unaligned, too short, overlapping, misshapen."""
    spec = OPS[sig.op]
    taken: list[tuple[str, int, int, int]] = []
    for name, at in operands.items():
        where = f"{sig.op}.{name}"
        if at.offset % device.alignment:
            yield note(where, f"starts at byte {at.offset}, alignment is {device.alignment}")
        if at.offset and not device.views:
            yield note(where, f"starts at byte {at.offset} of a device without views")
        if at.offset + at.nbytes > at.buffer.nbytes:
            yield note(where, f"ends at {at.offset + at.nbytes} of {at.buffer.nbytes} bytes")
        if name != "scratch":
            want = spec.shape(name, dict(sig.axes)) if name != "params" else at.shape
            if at.shape != want:
                yield note(where, f"has shape {at.shape}, not {want}")
        taken.append((name, id(at.buffer), at.offset, at.offset + at.nbytes))
    for i, (a, buffer, start, stop) in enumerate(taken):
        for b, other, first, last in taken[i + 1 :]:
            if buffer == other and start < last and first < stop:
                yield note(f"{sig.op}.{a}", f"overlaps {b}")


def _two_plans(bench: Bench, precision: Precision, seed: int) -> Verdict:
    """A second plan beside the first gives the same tokens, and the first still does."""
    run = "short/release/diffusion_t03"
    first = plan_of(bench, TINY, precision)
    want = generate(first, TINY, run).tokens
    second = plan_on(TINY, bench.open(), precision)
    try:
        problems = []
        for name, plan in (("second", second), ("first", first)):
            if generate(plan, TINY, run).tokens != want:
                problems.append(note(f"{name} plan", "gives other tokens"))
        return Verdict("native", problems)
    finally:
        second.close()
