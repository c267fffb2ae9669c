"""output_gate: one work-item for a number."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, ceil


class OutputGate(ClKernel):
    """Multiply by the sigmoid of the gate."""

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
            "output_gate",
            "output_gate",
            (ceil(sig["N"], ITEMS), sig["T"]),
            operands["params"],
            operands["o"],
            operands["gate"],
            operands["y"],
            sig["N"],
        )
        return Launches(self.device, [launch])
