"""block_scan: the sequential form of `scan.py`, 64 rows of operands at a time.

A verify works on a copy of its slot's memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Kind, Segment, Signature
from clover_rt_cpu.kernel import Array, CpuKernel, Shapes, blocks, table_of, views
from clover_rt_cpu.kernels.scan import Scan, group_heads


class BlockScan(CpuKernel):
    """Advance the memory over commit rows; read it, and leave a tape, for verify rows."""

    def shapes(self, sig: Signature) -> Shapes:
        heads, key, value = sig["H"], sig["K"], sig["V"]
        group = group_heads(heads, key, value)
        return {
            "copy": (heads, key, value),
            "outer": (self.workers.count, group, key, value),
        }

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        qkv, g, beta, memory, o = views(operands, "qkv", "g", "beta", "S", "o")
        tapes = views(operands, "tape_k", "tape_v", "tape_g", "tape_beta")
        groups, heads, key, value = (sig[a] for a in "GHKV")
        width = groups * key
        q = qkv[:, :width].reshape(-1, groups, key)
        k = qkv[:, width : 2 * width].reshape(-1, groups, key)
        v = qkv[:, 2 * width :].reshape(-1, heads, value)
        out = o.reshape(-1, heads, value)
        room = self.room(sig, scratch)
        scan = Scan(self.workers, room["outer"])

        def advance(s: Segment, state: Array) -> None:
            for block in blocks(s.rows):
                r = slice(s.row0 + block.start, s.row0 + block.stop)
                scan(state, q[r], k[r], v[r], g[r], beta[r], out[r])

        @np.errstate(all="ignore")
        def step() -> None:
            for s in table.read().segments:
                if s.kind is Kind.COMMIT:
                    advance(s, memory[s.slot])
                elif s.kind is Kind.VERIFY:
                    np.copyto(room["copy"], memory[s.slot])
                    advance(s, room["copy"])
                    rows = slice(s.row0, s.row0 + s.rows)
                    kept = (qkv[rows, width : 2 * width], qkv[rows, 2 * width :], g[rows])
                    for tape, values in zip(tapes, (*kept, beta[rows]), strict=True):
                        tape[s.slot, : s.rows] = values

        return step
