"""embed_rows: one work-item for eight numbers of a row."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, at, ceil
from clover_rt_rocm.opencl.weights import matrices


class EmbedRows(ClKernel):
    """Look up the rows of tokens."""

    kept = ("embed",)

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return matrices(self.device, weights)["embed"]

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        launches = [
            self.launch(
                sig,
                (prepared.text("embed", "weight"), "embed_rows"),
                "embed_rows",
                (ceil(sig["D"], 8 * ITEMS), sig["T"]),
                operands["params"],
                at(sig, "tokens"),
                *prepared.arguments(part),
                operands["h"],
                sig["D"],
                sig["vocab"],
                part.first,
                part.count,
            )
            for part in prepared.parts
        ]
        return Launches(self.device, launches)
