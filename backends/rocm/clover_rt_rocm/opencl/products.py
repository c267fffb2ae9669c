"""The forms of product.cl, when each is used, and rows in 8 bits for quantised weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from clover_rt.backend import Tensor
from clover_rt.spec import Format, Numerics, Precision, Signature
from clover_rt_rocm.opencl.device import Launch
from clover_rt_rocm.opencl.kernel import ITEMS, ClKernel, ceil

# columns that share a scale, and bytes of them with it and the sum of their codes
BLOCK = 32
BLOCK_BYTES = 40


@dataclass(frozen=True, slots=True)
class Form:
    """Rows and columns of a group of work-items; `given` chooses the form in the sources."""

    rows: int
    columns: int
    items: int
    given: Mapping[str, int]


ONE = Form(1, 16, 64, {"FEW_ROWS": 1})
FEW = Form(4, 16, 64, {"FEW_ROWS": 4})
MANY = Form(32, 64, 128, {})
ROUNDED = Form(32, 64, 128, {"ROUNDED": 1})


def form_of(rows: int) -> Form:
    """Return the form for passes of up to this many rows."""
    if rows == 1:
        return ONE
    return FEW if rows <= FEW.rows else MANY


class Product(ClKernel):
    """A kernel that multiplies rows with the weights that it keeps.

    In `fast`, many rows and weights of one quantised format are multiplied by integer dots, where
    the device has them.
    """

    @abstractmethod
    def plain_form(self, sig: Signature) -> Form:
        """Return the form in float32."""

    def form(self, sig: Signature) -> Form:
        formats = {sig.format(name)[0] for name in self.kept}
        is_rounded = (
            self.plain_form(sig) is MANY
            and sig.precision is Precision.FAST
            and len(formats) == 1
            and all(f.is_quantised for f in formats)
            and self.device.capabilities.int_dot != ""
        )
        return ROUNDED if is_rounded else self.plain_form(sig)

    def numerics(self, sig: Signature) -> Numerics:
        return Numerics.INT8_G32 if self.form(sig) is ROUNDED else Numerics.F32

    def rounded_room(self, sig: Signature, name: str, rows: int, width: int) -> dict[str, int]:
        """Return the scratch of an operand's rounded rows."""
        return {name: rows * width // BLOCK * BLOCK_BYTES} if self.form(sig) is ROUNDED else {}

    def round_rows(
        self, sig: Signature, table: Tensor, x: Tensor, to: Tensor, width: int, each: int = 1
    ) -> Launch:
        """Return the launch that rounds rows; `each` is how many there are for one of the table."""
        grid = (ceil(width // BLOCK, ITEMS), sig["T"] * each)
        is_q4 = sig.format(self.kept[0])[0] is Format.Q4
        more = (table, x, to, width, each)
        return self.launch(sig, "round_rows", "round_rows", grid, *more, NIBBLES=int(is_q4))
