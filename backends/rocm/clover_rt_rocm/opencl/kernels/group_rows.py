"""group_rows: one group of work-items for an expert."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel


class GroupRows(ClKernel):
    """Sort the pairs of a pass by expert."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launch = self.launch(
            sig,
            "group_rows",
            "group_rows",
            (sig["E"],),
            *(operands[n] for n in ("params", "ids", "order", "offsets")),
            sig["E"],
            sig["R"],
        )
        return Launches(self.device, [launch])
