"""causal_conv: rows, then the rings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature, TableClass
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, at, ceil, segments_of
from clover_rt_rocm.opencl.weights import vector


class CausalConv(ClKernel):
    """Convolve each channel over rows."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        if sig.table.has_preview and not sig.has("right"):
            return f"a {sig.table.value} table has previews, and there are 0 right taps"
        return super().supports(sig)

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
        table, segments = operands["params"], at(sig, "segments")
        u, ring, tape, y = (operands[n] for n in ("u", "ring", "tape_u", "y"))
        taps = prepared["taps"]
        right = prepared.get("right", taps)
        channels, kernel = sig["C"], sig["J"]
        groups = ceil(channels, ITEMS)
        launches = [
            self.launch(
                sig,
                "causal_conv",
                "causal_conv",
                (groups, sig["T"]),
                table,
                segments,
                at(sig, "row_segment"),
                u,
                taps,
                right,
                "right" in prepared,
                ring,
                tape,
                y,
                channels,
                kernel,
                sig["Q"],
            )
        ]
        if sig.table not in (TableClass.PREVIEW, TableClass.VERIFY):
            grid = (groups, segments_of(sig))
            more = (table, segments, u, ring, channels, kernel)
            launches.append(self.launch(sig, "causal_conv", "keep_ring", grid, *more))
        return Launches(self.device, launches)
