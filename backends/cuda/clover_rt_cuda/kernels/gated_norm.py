"""gated_norm: one program a few heads; a head's V columns (up to 4096) are held at once."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cuda.kernel import TritonKernel, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import ROWS, silu

TILE = 4096


@triton.jit
def gated_norm_kernel(
    table, o, z, y, w, eps, H, V, BH: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    count = tl.load(table + ROWS) * H
    if tl.program_id(0) * BH >= count:
        return
    head = (tl.program_id(0) * BH + tl.arange(0, BH)).to(tl.int64)
    v = tl.arange(0, BV)
    ok = (head < count)[:, None] & (v < V)[None, :]
    place = head[:, None] * V + v[None, :]
    tile = tl.load(o + place, mask=ok, other=0)
    root = tl.sqrt(tl.sum(tile * tile, 1) / V + eps)
    tile = tile / root[:, None] * tl.load(w + v, mask=v < V, other=0)[None, :]
    tl.store(y + place, tile * silu(tl.load(z + place, mask=ok, other=0)), mask=ok)


class GatedNorm(TritonKernel):
    """Normalise each value head and gate it."""

    def supports(self, sig: Signature) -> str:
        if sig["V"] > TILE:
            return f"V={sig['V']} exceeds {TILE}, the columns that one program holds"
        return super().supports(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return self.vector(weights["w"])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        heads, width = sig["H"], sig["V"]
        columns = block(width)
        each = min(TILE // columns, block(sig["T"] * heads, 1), 16)
        return self.launcher(
            sig,
            gated_norm_kernel,
            (cdiv(sig["T"] * heads, each),),
            table_of(operands),
            *views(operands, "o", "z", "y"),
            prepared,
            float(sig.attr("eps")),
            heads,
            width,
            BH=each,
            BV=columns,
        )
