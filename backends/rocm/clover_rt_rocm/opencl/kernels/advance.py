"""advance: the tape's rows into memory and ring."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, at, ceil, too_wide_key


class Advance(ClKernel):
    """Replay the accepted rows of a verify."""

    def row_invariant(self, sig: Signature) -> bool:
        return True

    def supports(self, sig: Signature) -> str:
        return super().supports(sig) or too_wide_key(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table, advances = operands["params"], at(sig, "advances")
        slots = min(sig.layout.segments, sig["slots"])
        memory = self.launch(
            sig,
            ("scan", "advance"),
            "advance",
            (ceil(sig["V"], ITEMS), sig["H"], slots),
            table,
            advances,
            *(operands[n] for n in ("S", "tape_k", "tape_v", "tape_g", "tape_beta")),
            *(sig[a] for a in ("G", "H", "V", "Q")),
            KEY=sig["K"],
            HAS_Q=0,
        )
        ring = self.launch(
            sig,
            ("scan", "advance"),
            "advance_ring",
            (ceil(sig["C"], ITEMS), slots),
            table,
            advances,
            operands["ring"],
            operands["tape_u"],
            *(sig[a] for a in ("C", "J", "Q")),
            KEY=sig["K"],
            HAS_Q=0,
        )
        return Launches(self.device, [memory, ring])
