"""combine: one work-item for a number of a row."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, ceil


class Combine(ClKernel):
    """Add up experts, shared expert and residual."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        names = ("params", "y", "ids", "weights", "shared", "shared_gate", "residual", "h")
        launch = self.launch(
            sig,
            "combine",
            "combine",
            (ceil(sig["D"], ITEMS), sig["T"]),
            *(operands[n] for n in names),
            sig["R"],
            sig["D"],
        )
        return Launches(self.device, [launch])
