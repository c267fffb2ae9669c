"""gdn: four launches: projections with norm and gates, convolution, memory, and the way out.

The rings of commits are moved by programs of the scan's launch. A table with commits or verifies
and previews takes one more launch: both the scan and block_memory. The norm of a value head and its
gate are made as tiles of the last product are loaded, head by head, so V is a multiple of 32.
"""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Numerics, Signature, TableClass
from clover_rt_cuda.kernel import (
    TritonKernel,
    numerics_of,
    room,
    room_bytes,
    sequence,
    table_of,
    views,
)
from clover_rt_cuda.kernels.block_memory import memory_step
from clover_rt_cuda.kernels.block_scan import MOST_KEYS, copies_count, scan_step
from clover_rt_cuda.kernels.causal_conv import conv_step, moves_rings
from clover_rt_cuda.kernels.gdn_gates import decay_of
from clover_rt_cuda.kernels.linear import LEAST_STEP, Gate, linear_step
from clover_rt_cuda.kernels.project import Part, project_step
from clover_rt_cuda.launch import CudaStep

MATRICES = ("qkv", "z", "a", "b", "out")
BLOCK = ("logit_scale", "history_bias", "history_c")


class Gdn(TritonKernel):
    """The first half of a Gated DeltaNet layer."""

    def numerics(self, sig: Signature) -> Numerics:
        return numerics_of(sig)

    def supports(self, sig: Signature) -> str:
        if sig["K"] > MOST_KEYS:
            return f"K={sig['K']} exceeds {MOST_KEYS}, the rows of the memory that a program holds"
        if sig["V"] % LEAST_STEP:
            return f"V={sig['V']} is no multiple of {LEAST_STEP}, a step of the last product"
        return super().supports(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        out = {name: self.upload(weights[name]) for name in MATRICES}
        out["input_norm"] = self.vector(weights["input_norm"], 1.0)
        out["gates"] = decay_of(self, weights)
        for name in ("conv", "right", "norm", *BLOCK):
            out[name] = self.vector(weights[name]) if name in weights else None
        return out

    def scratch(self, sig: Signature) -> int:
        return room_bytes(*_counts(sig))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(operands)
        h, ring, tape_u, state, y = views(operands, "h", "ring", "tape_u", "S", "y")
        tapes = views(operands, "tape_k", "tape_v", "tape_g", "tape_beta")
        u, z, g, beta, mixed, o, *copies = room(scratch, *_counts(sig))
        wide, heads = sig["H"] * sig["V"], sig["H"]
        parts = (
            Part(prepared["qkv"], u, sig["C"]),
            Part(prepared["z"], z, wide),
            Part(prepared["a"], g, heads, "decay"),
            Part(prepared["b"], beta, heads, "sigmoid"),
        )
        norm, gates = prepared["input_norm"], prepared["gates"]
        steps: list[CudaStep] = [
            project_step(self, sig, table, h, norm, parts, gates),
            conv_step(
                self, sig, table, u, prepared["conv"], prepared["right"], ring, tape_u, mixed
            ),
        ]
        if sig.table is not TableClass.PREVIEW:
            scanned = (mixed, g, beta, state, *tapes, o)
            moved = (u, ring) if moves_rings(sig) else (None, None)
            steps.append(
                scan_step(self, sig, table, scanned, copies[0] if copies else None, *moved)
            )
        if sig.table.has_preview:
            steps.append(memory_step(self, sig, table, mixed, g, state, prepared, o))
        gate = Gate(prepared["norm"], z, float(sig.attr("eps")), sig["V"])
        out = (o, h, y, prepared["out"], sig["D"], wide)
        steps.append(linear_step(self, sig, table, *out, gate))
        return sequence(steps)


def _counts(sig: Signature) -> tuple[int, ...]:
    """Return the numbers of u, z, g, beta, the convolved rows, o, and copies of memories."""
    rows, wide = sig["T"], sig["T"] * sig["H"] * sig["V"]
    gates = rows * sig["H"]
    copies = (copies_count(sig),) if copies_count(sig) else ()
    return rows * sig["C"], wide, gates, gates, rows * sig["C"], wide, *copies
