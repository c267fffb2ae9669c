"""block_memory: products over the whole block of a preview, all heads in one call.

Their shapes are the block's, so a block's bits do not depend on what else is in the pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Segment, Signature
from clover_rt_cpu.kernel import CpuKernel, table_of, views
from clover_rt_cpu.kernels.scan import unit_rows
from clover_rt_cpu.weights import vector

TRAINED_BLOCK = 32


class BlockMemory(CpuKernel):
    """Mix a previewed block: softmax over its rows and the slot's memory."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return {name: vector(weight) for name, weight in weights.items()}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        qkv, g, memory, o = views(operands, "qkv", "g", "S", "o")
        groups, heads, key, value = (sig[a] for a in "GHKV")
        width, each = groups * key, heads // groups
        columns = qkv[:, :width], qkv[:, width : 2 * width]
        q, k = (part.reshape(-1, groups, key) for part in columns)
        v = qkv[:, 2 * width :].reshape(-1, heads, value)
        scale = prepared["logit_scale"].reshape(groups, each, 1, 1)
        bias, slope = prepared["history_bias"], prepared["history_c"]
        root = np.sqrt(np.float32(key))

        def mix(s: Segment) -> None:
            n, rows = s.rows, slice(s.row0, s.row0 + s.rows)
            unit_q = np.ascontiguousarray(unit_rows(q[rows]).transpose(1, 0, 2))
            unit_k = np.ascontiguousarray(unit_rows(k[rows]).transpose(1, 2, 0))
            share = np.empty((groups, each, n, n + 1), np.float32)
            np.multiply(np.matmul(unit_q, unit_k)[:, None], scale, out=share[..., :n])
            history = bias + slope * np.float32(np.log(n / TRAINED_BLOCK))
            share[..., n] = history.reshape(groups, each, 1)
            share -= share.max(axis=-1, keepdims=True)
            np.exp(share, out=share)
            share /= share.sum(axis=-1, keepdims=True)
            unit_q /= root
            state = memory[s.slot].reshape(groups, each, key, value)
            past = np.matmul(unit_q[:, None], state).reshape(heads, n, value)
            past *= share[..., n].reshape(heads, n, 1)
            past *= np.exp(g[rows]).T[:, :, None]
            block = np.ascontiguousarray(share[..., :n]).reshape(heads, n, n)
            past += np.matmul(block, np.ascontiguousarray(v[rows].transpose(1, 0, 2)))
            o[rows] = past.transpose(1, 0, 2).reshape(n, heads * value)

        @np.errstate(all="ignore")
        def step() -> None:
            for s in table.read().previews:
                mix(s)

        return step
