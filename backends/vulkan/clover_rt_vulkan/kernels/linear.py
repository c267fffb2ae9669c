"""linear: rows times a weight, in a few-row and a many-row form."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import up
from clover_rt_vulkan.products import Product, form_of, rounded
from clover_rt_vulkan.weights import matrices


class Linear(Product):
    """Multiply rows by a weight."""

    kept = ("w",)

    def rooms(self, sig: Signature) -> dict[str, int]:
        return self.rounded_rooms(sig, "x", sig["T"], sig["K"])

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return matrices(self.device, weights)["w"]

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        form = form_of(sig["T"])
        given = {"residual": operands["x"], **operands}
        chosen = {"HAS_RESIDUAL": int(sig.has("residual")), **form.constants}
        launches, shader = [], f"linear_{form.suffix}"
        if self.is_rounded(sig):
            room = {**operands, **self.room(sig, scratch)}
            launches.append(self.round_rows(sig, room, "x", sig["K"]))
            given |= rounded(room, "x")
            shader += "_int8"
        launches += [
            self.dispatch(
                sig,
                shader,
                (up(part.count, form.columns), up(sig["T"], form.rows)),
                given | prepared.buffers("w", part),
                chosen | prepared.constants("w"),
                K=sig["K"],
                N=sig["N"],
                first=part.first,
                count=part.count,
            )
            for part in prepared.parts
        ]
        return Launches(self.device, launches)
