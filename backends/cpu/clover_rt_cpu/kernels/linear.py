"""linear: spans of the weight are converted to float32 and multiplied with all rows.

The workers share the spans; each holds one converted span, about 1 MB, that stays in cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.kernel import CpuKernel, Shapes, table_of, views
from clover_rt_cpu.products import Product, pad_rows, spans_of, tiles_for
from clover_rt_cpu.weights import matrices


class Linear(CpuKernel):
    """Multiply rows with a weight and add a residual."""

    def shapes(self, sig: Signature) -> Shapes:
        tiles = tiles_for(sig["K"], sig["N"])
        return {
            "x": (tiles.padded(sig["T"]), sig["K"]),
            **Product.shapes(self.workers, tiles),
        }

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return spans_of(matrices(weights["w"]), tiles_for(sig["K"], sig["N"]).height)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        x, y = views(operands, "x", "y")
        residual: Any = views(operands, "residual")[0] if sig.has("residual") else None
        tiles = tiles_for(sig["K"], sig["N"])
        room = self.room(sig, scratch)
        product = Product(self.workers, tiles, room["weights"], room["products"])

        @np.errstate(all="ignore")
        def step() -> None:
            n = table.rows
            if not n:
                return
            rows = room["x"][: tiles.padded(n)]
            pad_rows(x, n, rows)
            product(rows, n, prepared, y, residual)

        return step
