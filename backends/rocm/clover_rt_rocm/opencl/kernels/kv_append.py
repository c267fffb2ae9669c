"""kv_append: one work-item for a number of k and of v."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, KV_TYPES, ClKernel, at, ceil, kv_type


class KvAppend(ClKernel):
    """Write causal rows into the pages."""

    types = KV_TYPES

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        width = sig["G"] * sig["K"]
        launch = self.launch(
            sig,
            "kv_append",
            "kv_append",
            (ceil(width, ITEMS), sig["T"]),
            operands["params"],
            at(sig, "segments"),
            at(sig, "row_segment"),
            *(operands[n] for n in ("k", "v", "page_table", "k_pool", "v_pool")),
            width,
            sig["slot_pages"],
            **kv_type(sig),
        )
        return Launches(self.device, [launch])
