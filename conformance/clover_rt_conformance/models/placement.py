"""The same tokens wherever ops run: some of the device's kernels are hidden, the host has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clover_rt.backend import Buffer, Device, Memory, Step, Usage
from clover_rt.ops import OPS
from clover_rt.plan import Place
from clover_rt.spec import Precision, Tier
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.bound import note
from clover_rt_conformance.harness import Verdict
from clover_rt_conformance.models.binding import plan_on
from clover_rt_conformance.models.exact import EXACT, TINY, equal_tokens, generate
from clover_rt_conformance.models.golden import runs
from clover_rt_conformance.reference_device import ReferenceDevice
from clover_rt_conformance.trial import Trial

PRIMITIVES = tuple(name for name, spec in OPS.items() if spec.tier is Tier.PRIMITIVE)
HIDDEN: dict[str, tuple[str, ...]] = {
    "experts": ("expert_gemm",),
    "scan": ("block_scan",),
    "convolution": ("causal_conv",),
    "attention": ("attend",),
    "routing": ("coreset", "router_topk", "group_rows"),
    "head": ("confidence_topk",),
    "embedding": ("embed_rows", "begin"),
    "projections": ("linear",),
    "every-second": PRIMITIVES[::2],
    "every-other-second": PRIMITIVES[1::2],
}
RUNS = ("short/release/diffusion_t03", "one/release/ar")


class Partial(Device):
    """A device without some of its kernels."""

    def __init__(self, whole: Device, hidden: tuple[str, ...]) -> None:
        self.whole = whole
        self.name = whole.name
        # a layer op does what is hidden inside it, so that is hidden too
        gone = {*hidden, *(n for n, s in OPS.items() if s.tier is Tier.LAYER)}
        self.kernels = {op: k for op, k in whole.kernels.items() if op not in gone}
        self.alignment = whole.alignment
        self.max_binding_bytes = whole.max_binding_bytes
        self.views = whole.views

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        return self.whole.alloc(nbytes, usage)

    def free(self, buffer: Buffer) -> None:
        self.whole.free(buffer)

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        self.whole.copy(dst, dst_offset, src, src_offset, n)

    def upload(self, dst: Buffer, offset: int, src: Any) -> None:
        self.whole.upload(dst, offset, src)

    def download(self, src: Buffer, offset: int, dst: Any) -> None:
        self.whole.download(src, offset, dst)

    def synchronize(self) -> None:
        self.whole.synchronize()

    def memory(self) -> Memory:
        return self.whole.memory()

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        return self.whole.dtypes(precision)

    def capture(self, steps: Any) -> Step:
        return self.whole.capture(steps)

    def close(self) -> None:
        self.whole.close()


def placement_trials() -> Iterator[Trial]:
    """Yield golden runs with some ops forced to the host, whose kernels are the references."""
    for name, hidden in HIDDEN.items():

        def run(
            bench: Bench, precision: Precision, seed: int, hidden: tuple[str, ...] = hidden
        ) -> Verdict:
            return _placed(bench, precision, hidden)

        yield Trial(f"model/{TINY}/host-{name}", "model", ("K-31",), run, precisions=EXACT)


def _placed(bench: Bench, precision: Precision, hidden: tuple[str, ...]) -> Verdict:
    device = Partial(bench.open(), hidden)
    plan = plan_on(TINY, device, precision, ReferenceDevice("host"))
    try:
        moved = sum(c.place is Place.HOST for c in plan.choices)
        problems = [] if moved else [note("plan", f"{', '.join(hidden)} did not move to the host")]
        for run in RUNS:
            end = generate(plan, TINY, run)
            problems += equal_tokens(run, end.tokens, runs(TINY)["decode"][run]["tokens"])
        kept = len(plan.choices) - moved
        told = f"{moved} steps on the host, {kept} on the device"
        return Verdict("composed", problems, notes=(told,))
    finally:
        plan.close()
