"""output_gate: elementwise, 1024 numbers a program."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import ROWS, sigmoid


@triton.jit
def output_gate_kernel(table, o, gate, y, N, BLOCK: tl.constexpr):
    count = tl.load(table + ROWS).to(tl.int64) * N
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    value = tl.load(o + i, mask=ok, other=0)
    tl.store(y + i, value * sigmoid(tl.load(gate + i, mask=ok, other=0)), mask=ok)


class OutputGate(TritonKernel):
    """Multiply attention's output with the sigmoid of its gate."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        count = sig["T"] * sig["N"]
        numbers = block(count, 16, 1024)
        return self.launcher(
            sig,
            output_gate_kernel,
            (cdiv(count, numbers),),
            table_of(operands),
            *views(operands, "o", "gate", "y"),
            sig["N"],
            BLOCK=numbers,
        )
