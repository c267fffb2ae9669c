"""Products: their two forms, and rows in 8 bits for those with quantised weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clover_rt.backend import Tensor
from clover_rt.spec import Format, Numerics, Precision, Signature
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.kernel import ITEMS, VulkanKernel, up

# columns that share a scale
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Form:
    """Rows and columns of a group of work-items.

    suffix     of the shaders' names
    constants  that the shaders of this form take
    """

    suffix: str
    rows: int
    columns: int
    constants: Mapping[str, int]


ONE = Form("few", 1, 16, {"ROWS": 1})
FEW = Form("few", 4, 16, {"ROWS": 4})
# a previewed block of 32 rows gives an expert more than four rows now and then
EIGHT = Form("few", 8, 16, {"ROWS": 8})
MANY = Form("many", 32, 64, {})


def form_of(rows: int) -> Form:
    """Return the form for passes of up to this many rows."""
    if rows == 1:
        return ONE
    return FEW if rows <= FEW.rows else MANY


class Product(VulkanKernel):
    """A kernel that multiplies rows with the weights that it keeps.

    In `fast`, with weights of one quantised format, rows are rounded to 8 bits in blocks of 32
    where the device has integer dots.
    """

    def numerics(self, sig: Signature) -> Numerics:
        return Numerics.INT8_G32 if self.is_rounded(sig) else Numerics.F32

    def is_rounded(self, sig: Signature) -> bool:
        formats = {sig.format(name)[0] for name in self.kept}
        return (
            sig.precision is Precision.FAST
            and len(formats) == 1
            and all(f.is_quantised for f in formats)
            and "int8_dot" in self.device.driver.features
        )

    def rounded_rooms(self, sig: Signature, name: str, rows: int, width: int) -> dict[str, int]:
        """Return the scratch of rounded rows: codes, and two numbers a block."""
        if not self.is_rounded(sig):
            return {}
        return {f"{name}_codes": rows * width, f"{name}_scales": 8 * rows * width // BLOCK}

    def round_rows(
        self, sig: Signature, operands: Mapping[str, Tensor], name: str, width: int, each: int = 1
    ) -> Dispatch:
        """Return the dispatch that rounds the rows of an operand into its scratch.

        each  rows of the operand for a row of the table
        """
        buffers = {
            "params": operands["params"],
            "x": operands[name],
            "codes": operands[f"{name}_codes"],
            "scales": operands[f"{name}_scales"],
        }
        is_q4 = sig.format(self.kept[0])[0] is Format.Q4
        grid = (up(width // BLOCK, ITEMS), sig["T"] * each)
        constants = {"NIBBLES": int(is_q4)}
        return self.dispatch(sig, "quantise_rows", grid, buffers, constants, K=width, each=each)


def rounded(operands: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return an operand's rounded rows by the names that the products' shaders have for them."""
    return {name: operands[f"{name}_codes"], "x_scales": operands[f"{name}_scales"]}
