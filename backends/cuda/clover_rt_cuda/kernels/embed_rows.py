"""embed_rows: one program a row and 1024 columns; the row is decoded where it lies."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, Words, block, cdiv, table_of, view
from clover_rt_cuda.kernels.tools import ROWS, weight_at


@triton.jit
def embed_rows_kernel(
    table, tokens, h, codes, scale, zero, vocab, D,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if row >= tl.load(table + ROWS):
        return
    token = tl.load(table + tokens + row)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    ok = (d < D) & (token >= 0) & (token < vocab)
    value = weight_at(codes, scale, zero, token.to(tl.int64), d, ok, D, FORMAT, GROUP)
    # q4 without a zero point decodes what was not loaded to -8 scales
    tl.store(h + row.to(tl.int64) * D + d, tl.where(ok, value, 0.0), mask=d < D)


class EmbedRows(TritonKernel):
    """Look up the embedding of each row's token."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        weight, width = prepared["embed"], sig["D"]
        columns = block(width, 16, 1024)
        return self.launcher(
            sig,
            embed_rows_kernel,
            (sig["T"], cdiv(width, columns)),
            table_of(operands),
            Words.of(sig.layout).tokens,
            view(operands["h"]),
            *weight.arrays,
            sig["vocab"],
            width,
            **weight.constants,
            BD=columns,
        )
