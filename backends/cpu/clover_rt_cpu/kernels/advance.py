"""advance: the same scan over the rows of a tape, so the bits are those of a commit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.kernel import CpuKernel, Shapes, table_of, views
from clover_rt_cpu.kernels.scan import Scan, group_heads


class Advance(CpuKernel):
    """Replay the accepted rows of a slot's tape into its ring and memory."""

    def shapes(self, sig: Signature) -> Shapes:
        heads, key, value = sig["H"], sig["K"], sig["V"]
        group = group_heads(heads, key, value)
        return {"outer": (self.workers.count, group, key, value)}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        ring, memory, tape_u = views(operands, "ring", "S", "tape_u")
        tape_k, tape_v, tape_g, tape_beta = views(
            operands, "tape_k", "tape_v", "tape_g", "tape_beta"
        )
        groups, heads, key, value = (sig[a] for a in "GHKV")
        scan = Scan(self.workers, self.room(sig, scratch)["outer"])
        before = sig["J"] - 1

        @np.errstate(all="ignore")
        def step() -> None:
            for slot, n in table.advances:
                if n == 0:
                    continue
                kept = max(0, before - n)
                # the rows that stay move to the front: the copy keeps them from overlapping
                ring[slot, :kept] = ring[slot, before - kept :].copy()
                ring[slot, kept:] = tape_u[slot, n - (before - kept) : n]
                k = tape_k[slot, :n].reshape(n, groups, key)
                v = tape_v[slot, :n].reshape(n, heads, value)
                scan(memory[slot], None, k, v, tape_g[slot, :n], tape_beta[slot, :n], None)

        return step
