"""rms_norm: one program a few groups of K columns; two passes over them, squares in float32."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cuda.kernel import TritonKernel, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import ROWS

TILE = 2048


@triton.jit
def rms_norm_kernel(
    table, x, y, w, eps, G, K, BG: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    count = tl.load(table + ROWS) * G
    if tl.program_id(0) * BG >= count:
        return
    group = (tl.program_id(0) * BG + tl.arange(0, BG)).to(tl.int64)
    squares = tl.zeros((BG,), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        ok = (group < count)[:, None] & (k < K)[None, :]
        tile = tl.load(x + group[:, None] * K + k[None, :], mask=ok, other=0)
        squares += tl.sum(tile * tile, 1)
    root = tl.sqrt(squares / K + eps)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        ok = (group < count)[:, None] & (k < K)[None, :]
        place = group[:, None] * K + k[None, :]
        tile = tl.load(x + place, mask=ok, other=0) / root[:, None]
        tl.store(y + place, tile * tl.load(w + k, mask=k < K, other=0)[None, :], mask=ok)


class RmsNorm(TritonKernel):
    """Normalise groups of K columns; the weight is kept with its offset added."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return self.vector(weights["w"], sig.attr("offset"))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        groups, width = sig["G"], sig["K"]
        columns = block(width, 16, TILE)
        each = min(TILE // columns, block(sig["T"] * groups, 1))
        return self.launcher(
            sig,
            rms_norm_kernel,
            (cdiv(sig["T"] * groups, each),),
            table_of(operands),
            *views(operands, "x", "y"),
            prepared,
            float(sig.attr("eps")),
            groups,
            width,
            BG=each,
            BK=columns,
        )
