"""block_memory: one program a head, up to 32 of its value columns, and 16 rows of a block.

A softmax over the block's rows, 16 at a time, that starts with the history slot; no loop over
single rows. The K columns pass by 16 at a time. float32 throughout.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cuda.kernel import TritonKernel, Words, cdiv, table_of, views
from clover_rt_cuda.kernels.block_scan import MEMORY_ROWS, scan_tile
from clover_rt_cuda.kernels.scan import product
from clover_rt_cuda.kernels.tools import PREVIEW, SEGMENT, SEGMENTS
from clover_rt_cuda.launch import CudaStep

BLOCK_ROWS = 16


@triton.jit
def mix_block(
    qkv, g, memory, scale, history, o, row0, rows, first, head, part, H, G, K, V,
    BM: tl.constexpr, BX: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write rows first .. first + BM - 1 of a block; history is the logit of the history slot."""
    x = tl.arange(0, BX)
    v = part * BV + tl.arange(0, BV)
    v_ok = v < V
    width = G * K
    columns = 2 * width + H * V
    group = head // (H // G)
    t = first + tl.arange(0, BM)
    ok = t < rows
    row = (row0 + t).to(tl.int64)
    q = qkv + (row * columns + group * K)[:, None]
    acc = tl.zeros((BM, BV), tl.float32)
    square = tl.zeros((BM,), tl.float32)
    for x0 in range(0, K, BX):
        inside = x0 + x < K
        own = tl.load(q + (x0 + x)[None, :], mask=ok[:, None] & inside[None, :], other=0)
        square += tl.sum(own * own, 1)
        place = memory + (x0 + x)[:, None] * V + v[None, :]
        acc += product(own, tl.load(place, mask=inside[:, None] & v_ok[None, :], other=0))
    root = 1.0 / tl.sqrt(square + 1e-6)
    grown = tl.exp(tl.load(g + row * H + head, mask=ok, other=0))
    acc *= (root * grown / tl.sqrt(tl.full((), 1.0, tl.float32) * K))[:, None]
    peak = tl.zeros((BM,), tl.float32) + history
    total = tl.full((BM,), 1.0, tl.float32)
    for start in range(0, rows, BM):
        s = start + tl.arange(0, BM)
        s_ok = s < rows
        k = qkv + ((row0 + s).to(tl.int64) * columns + width + group * K)[:, None]
        logits = tl.zeros((BM, BM), tl.float32)
        k_square = tl.zeros((BM,), tl.float32)
        for x0 in range(0, K, BX):
            inside = x0 + x < K
            own = tl.load(q + (x0 + x)[None, :], mask=ok[:, None] & inside[None, :], other=0)
            key = tl.load(k + (x0 + x)[None, :], mask=s_ok[:, None] & inside[None, :], other=0)
            k_square += tl.sum(key * key, 1)
            logits += product(own, tl.trans(key))
        k_root = scale / tl.sqrt(k_square + 1e-6)
        logits *= root[:, None] * k_root[None, :]
        logits = tl.where(s_ok[None, :], logits, float("-inf"))
        values = ((row0 + s).to(tl.int64) * columns + 2 * width + head * V)[:, None] + v[None, :]
        value = tl.load(qkv + values, mask=s_ok[:, None] & v_ok[None, :], other=0)
        above = tl.maximum(peak, tl.max(logits, 1))
        share = tl.exp(logits - above[:, None])
        shrunk = tl.exp(peak - above)
        total = total * shrunk + tl.sum(share, 1)
        acc = acc * shrunk[:, None] + product(share, value)
        peak = above
    out = (row * H * V + head * V)[:, None] + v[None, :]
    tl.store(o + out, acc / total[:, None], mask=ok[:, None] & v_ok[None, :])


@triton.jit
def block_memory_kernel(
    table, segments, qkv, g, S, logit_scale, history_bias, history_c, o, H, G, K, V,
    BM: tl.constexpr, BX: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    head, part, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BM
    for s in range(0, tl.load(table + SEGMENTS)):
        entry = table + segments + s * SEGMENT
        rows = tl.load(entry + 3)
        if (tl.load(entry) == PREVIEW) & (first < rows):
            memory = S + (tl.load(entry + 1).to(tl.int64) * H + head) * K * V
            bias, slope = tl.load(history_bias + head), tl.load(history_c + head)
            history = bias + slope * tl.log(rows.to(tl.float32) / 32.0)
            scale = tl.load(logit_scale + head)
            mix_block(
                qkv, g, memory, scale, history, o, tl.load(entry + 2), rows, first, head, part,
                H, G, K, V, BM, BX, BV,
            )  # fmt: skip


class BlockMemory(TritonKernel):
    """Mix the rows of a preview and its slot's memory."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return {name: self.vector(weight) for name, weight in weights.items()}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        qkv, g, state, o = views(operands, "qkv", "g", "S", "o")
        return memory_step(self, sig, table_of(operands), qkv, g, state, prepared, o)


def memory_step(
    kernel: TritonKernel,
    sig: Signature,
    table: torch.Tensor,
    qkv: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
    prepared: Mapping[str, torch.Tensor],
    o: torch.Tensor,
) -> CudaStep:
    """Return the step that writes the preview rows of o."""
    columns = scan_tile(sig)["BV"]
    return kernel.launcher(
        sig,
        block_memory_kernel,
        (sig["H"], cdiv(sig["V"], columns), cdiv(sig["T"], BLOCK_ROWS)),
        table,
        Words.of(sig.layout).segments,
        qkv,
        g,
        state,
        *(prepared[name] for name in ("logit_scale", "history_bias", "history_c")),
        o,
        *(sig[a] for a in "HGKV"),
        BM=BLOCK_ROWS,
        BX=MEMORY_ROWS,
        BV=columns,
    )
