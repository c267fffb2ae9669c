"""linear: rows times a weight, in a few-row and a many-row form."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.kernel import VulkanKernel, up
from clover_rt_vulkan.products import Product, form_of, rounded
from clover_rt_vulkan.weights import Matrix, matrices


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
        rows, suffix = dict(operands), ""
        launches = []
        if self.is_rounded(sig):
            room = {**operands, **self.room(sig, scratch)}
            launches.append(self.round_rows(sig, room, "x", sig["K"]))
            rows |= rounded(room, "x")
            suffix = "_int8"
        launches += product(self, sig, rows, prepared, sig["K"], sig["N"], suffix)
        return Launches(self.device, launches)


def product(
    kernel: VulkanKernel,
    sig: Signature,
    rows: Mapping[str, Tensor],
    weight: Matrix,
    width: int,
    columns: int,
    suffix: str = "",
) -> list[Dispatch]:
    """Return the dispatches of rows times a weight [columns, width], one for each of its parts.

    rows    params, x and y, and a residual if there is one
    suffix  of the shader's form
    """
    form = form_of(sig["T"])
    chosen = {"HAS_RESIDUAL": int("residual" in rows), **form.constants}
    return [
        kernel.dispatch(
            sig,
            f"linear_{form.suffix}{suffix}",
            (up(part.count, form.columns), up(sig["T"], form.rows)),
            {"residual": rows["x"], **rows, **weight.buffers("w", part)},
            chosen | weight.constants("w"),
            K=width,
            N=columns,
            first=part.first,
            count=part.count,
        )
        for part in weight.parts
    ]
