"""begin: page and count deltas of a pass."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel, at


class Begin(ClKernel):
    """Apply the deltas; counts are added as integers."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launch = self.launch(
            sig,
            "begin",
            "begin",
            (1,),
            operands["params"],
            at(sig, "page_deltas"),
            at(sig, "count_deltas"),
            operands["page_table"],
            operands["counts"],
            sig["slot_pages"],
            sig["vocab"],
        )
        return Launches(self.device, [launch])
