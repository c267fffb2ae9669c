"""block_memory: one group of work-items for a preview row and a value head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, at, ceil, local
from clover_rt_rocm.opencl.weights import vector

MOST_COLUMNS = 8


class BlockMemory(ClKernel):
    """Mix a previewed block with itself and with the memory."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        if sig["V"] > MOST_COLUMNS * ITEMS:
            return f"V={sig['V']} exceeds {MOST_COLUMNS * ITEMS}, the columns of a group"
        return super().supports(sig) or self.too_local(4 * sig["K"] + 512, "columns of a key")

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        values = {n: w.whole().values(np.float32) for n, w in weights.items()}
        return {n: vector(self.device, v, weights[n].name) for n, v in values.items()}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launch = self.launch(
            sig,
            "block_memory",
            "block_memory",
            (sig["H"], sig["T"]),
            operands["params"],
            at(sig, "segments"),
            at(sig, "row_segment"),
            *(operands[n] for n in ("qkv", "g", "S")),
            *(prepared[n] for n in ("logit_scale", "history_bias", "history_c")),
            operands["o"],
            *(sig[a] for a in ("G", "H", "K", "V")),
            local(sig["K"]),
            COLUMNS=ceil(sig["V"], ITEMS),
        )
        return Launches(self.device, [launch])
