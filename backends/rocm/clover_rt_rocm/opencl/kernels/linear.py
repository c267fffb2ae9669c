"""linear: rows times a weight, in a few-row and a many-row form; the latter may round rows."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ceil
from clover_rt_rocm.opencl.products import ROUNDED, Form, Product, form_of
from clover_rt_rocm.opencl.weights import matrices


class Linear(Product):
    """Multiply rows by a weight."""

    kept = ("w",)

    def plain_form(self, sig: Signature) -> Form:
        return form_of(sig["T"])

    def rooms(self, sig: Signature) -> dict[str, int]:
        return self.rounded_room(sig, "rounded", sig["T"], sig["K"])

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return matrices(self.device, weights)["w"]

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        form, table, x = self.form(sig), operands["params"], operands["x"]
        residual = operands.get("residual", x)
        launches = []
        if form is ROUNDED:
            rounded = self.room(sig, scratch)["rounded"]
            launches.append(self.round_rows(sig, table, x, rounded, sig["K"]))
            x = rounded
        for part in prepared.parts:
            launches.append(
                self.launch(
                    sig,
                    ("product", prepared.text("w", "weight", "product_of"), "linear"),
                    "linear_few" if "FEW_ROWS" in form.given else "linear_many",
                    (ceil(part.count, form.columns), ceil(sig["T"], form.rows)),
                    table,
                    x,
                    *prepared.arguments(part),
                    residual,
                    sig.has("residual"),
                    operands["y"],
                    sig["K"],
                    sig["N"],
                    part.first,
                    part.count,
                    items=form.items,
                    **form.given,
                )
            )
        return Launches(self.device, launches)
