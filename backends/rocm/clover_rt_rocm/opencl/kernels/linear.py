"""linear: rows times a weight, in a few-row and a many-row form."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel, ceil
from clover_rt_rocm.opencl.products import form_of
from clover_rt_rocm.opencl.weights import matrices


class Linear(ClKernel):
    """Multiply rows by a weight."""

    kept = ("w",)

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
        residual = operands.get("residual", operands["x"])
        launches = [
            self.launch(
                ("product", prepared.text("w", "weight", "product_of"), "linear"),
                "linear_few" if form.given else "linear_many",
                (ceil(part.count, form.columns), ceil(sig["T"], form.rows)),
                operands["params"],
                operands["x"],
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
            for part in prepared.parts
        ]
        return Launches(self.device, launches)
