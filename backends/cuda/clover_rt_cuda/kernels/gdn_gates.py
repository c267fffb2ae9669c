"""gdn_gates: elementwise over rows and heads, 1024 numbers a program."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cuda.kernel import TritonKernel, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import ROWS, sigmoid, softplus


@triton.jit
def decay(a, rate, bias):
    """The log decay of a row and head; rate is e^A_log."""
    return -rate * softplus(a + bias)


@triton.jit
def gdn_gates_kernel(table, a, b, rate, bias, g, beta, H, BLOCK: tl.constexpr):
    count = tl.load(table + ROWS) * H
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    head = i % H
    r, c = tl.load(rate + head), tl.load(bias + head)
    tl.store(g + i, decay(tl.load(a + i, mask=ok, other=0), r, c), mask=ok)
    tl.store(beta + i, sigmoid(tl.load(b + i, mask=ok, other=0)), mask=ok)


class GdnGates(TritonKernel):
    """Compute log decay and write strength."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return decay_of(self, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        count = sig["T"] * sig["H"]
        numbers = block(count, 16, 1024)
        return self.launcher(
            sig,
            gdn_gates_kernel,
            (cdiv(count, numbers),),
            table_of(operands),
            *views(operands, "a", "b"),
            *prepared,
            *views(operands, "g", "beta"),
            sig["H"],
            BLOCK=numbers,
        )


def decay_of(kernel: TritonKernel, weights: Mapping[str, HostWeight]) -> Prepared:
    """Return (e^A_log, dt_bias) on the device."""
    rate = kernel.vector(weights["A_log"]).exp_()
    return rate, kernel.vector(weights["dt_bias"])
