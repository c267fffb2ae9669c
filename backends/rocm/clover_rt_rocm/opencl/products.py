"""The two forms of product.cl, and when each is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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


def form_of(rows: int) -> Form:
    """Return the form for passes of up to this many rows."""
    if rows == 1:
        return ONE
    return FEW if rows <= FEW.rows else MANY
