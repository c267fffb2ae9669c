"""embed_rows: decodes only the rows of the pass's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.kernel import CpuKernel, table_of, views
from clover_rt_cpu.weights import decode_rows


class EmbedRows(CpuKernel):
    """Look up the embedding of each row's token."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return list(weights["embed"].pieces)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        (h,) = views(operands, "h")

        def step() -> None:
            tokens: Any = table.tokens
            if len(tokens):
                decode_rows(prepared, np.array(tokens, np.int64), h[: len(tokens)])

        return step
