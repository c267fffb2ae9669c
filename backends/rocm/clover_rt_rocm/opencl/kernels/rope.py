"""rope: one work-item for a number."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, at, ceil


class Rope(ClKernel):
    """Rotate the first columns of each head."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        width = sig["H"] * sig["K"]
        launch = self.launch(
            sig,
            "rope",
            "rope",
            (ceil(width, ITEMS), sig["T"]),
            operands["params"],
            at(sig, "segments"),
            at(sig, "row_segment"),
            operands["x"],
            operands["angles"],
            operands["y"],
            width,
            sig["K"],
            sig["r"],
        )
        return Launches(self.device, [launch])
