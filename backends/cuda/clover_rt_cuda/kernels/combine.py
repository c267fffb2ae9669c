"""combine: one program a row and up to 512 columns; experts are added in slot order."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import ROWS, sigmoid


@triton.jit
def combine_kernel(
    table, y, ids, weights, shared, shared_gate, residual, h, D,
    R: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if row >= tl.load(table + ROWS):
        return
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    ok = d < D
    place = row.to(tl.int64) * D + d
    gate = sigmoid(tl.load(shared_gate + row))
    total = tl.load(shared + place, mask=ok, other=0) * gate
    for r in tl.static_range(R):
        pair = row * R + r
        if tl.load(ids + pair) >= 0:
            part = tl.load(y + pair.to(tl.int64) * D + d, mask=ok, other=0)
            total += tl.load(weights + pair) * part
    tl.store(h + place, tl.load(residual + place, mask=ok, other=0) + total, mask=ok)


class Combine(TritonKernel):
    """Add up a row's experts, the shared expert and the residual."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        width = sig["D"]
        columns = block(width, 16, 512)
        names = ("y", "ids", "weights", "shared", "shared_gate", "residual", "h")
        return self.launcher(
            sig,
            combine_kernel,
            (sig["T"], cdiv(width, columns)),
            table_of(operands),
            *views(operands, *names),
            width,
            R=sig["R"],
            BD=columns,
        )
