"""linear: one program a block of columns and a block of rows.

Few rows (a capacity of up to 4): a program multiplies one row with 32 rows of the weight, without
tiles of a matrix unit, and is bound by the bytes of the weight. More rows: tiles of 16, 32 or 64
rows by 64 columns. q4 is unpacked into its even and its odd columns, each a product of its own, so
that no nibbles are interleaved. Sums in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Numerics, Precision, Signature
from clover_rt_cuda.kernel import (
    DeviceWeight,
    TritonKernel,
    block,
    cdiv,
    dot_type,
    numerics_of,
    table_of,
    view,
    views,
)
from clover_rt_cuda.kernels.tools import (
    ROWS,
    gated_row_product,
    gated_rows_product,
    row_product,
    rows_product,
)
from clover_rt_cuda.launch import CudaStep

FEW_ROWS = 4
LEAST_STEP = 32
"""Columns that a step of a product takes at least; a head's are a multiple of it."""
ROW_BLOCKS = (16, 32, 64)


@triton.jit
def linear_row(
    table, x, residual, y, codes, scale, zero, norm, gate, eps, V, N, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    if row >= tl.load(table + ROWS):
        return
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    ok = n < N
    line, place = row.to(tl.int64), n.to(tl.int64)
    if gate is not None:
        acc = gated_row_product(
            x, gate, line, norm, eps, V, codes, scale, zero, place, ok, K, FORMAT, GROUP, BN, BK
        )
    else:
        acc, _ = row_product(x, line, None, codes, scale, zero, place, ok, K, FORMAT, GROUP, BN, BK)
    if residual is not None:
        acc += tl.load(residual + line * N + n, mask=ok, other=0)
    tl.store(y + line * N + n, acc, mask=ok)


@triton.jit
def linear_rows(
    table, x, residual, y, codes, scale, zero, norm, gate, eps, V, N, K,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    count = tl.load(table + ROWS)
    if tl.program_id(1) * BM >= count:
        return
    rows = (tl.program_id(1) * BM + tl.arange(0, BM)).to(tl.int64)
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    rows_ok, ok = rows < count, n < N
    if gate is not None:
        acc = gated_rows_product(
            x, gate, rows, rows_ok, norm, eps, V, codes, scale, zero, n, ok, K,
            FORMAT, GROUP, TYPE, BM, BN, BK,
        )  # fmt: skip
    else:
        acc, _ = rows_product(
            x, rows, rows_ok, None, codes, scale, zero, n, ok, K,
            FORMAT, GROUP, TYPE, BM, BN, BK,
        )  # fmt: skip
    place = rows[:, None] * N + n[None, :]
    mask = rows_ok[:, None] & ok[None, :]
    if residual is not None:
        acc += tl.load(residual + place, mask=mask, other=0)
    tl.store(y + place, acc, mask=mask)


class Linear(TritonKernel):
    """Multiply rows with a weight and add a residual."""

    def numerics(self, sig: Signature) -> Numerics:
        return Numerics.F32 if sig["T"] <= FEW_ROWS else numerics_of(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        x, y = views(operands, "x", "y")
        residual = view(operands["residual"]) if sig.has("residual") else None
        rows = (table_of(operands), x, residual, y)
        return linear_step(self, sig, *rows, prepared["w"], sig["N"], sig["K"])


@dataclass(frozen=True, slots=True)
class Gate:
    """A norm over heads of `width` columns, and the gate behind it."""

    norm: torch.Tensor
    gate: torch.Tensor
    eps: float
    width: int

    @property
    def step(self) -> int:
        """Return the most columns that a step of a product may take of a head."""
        return self.width & -self.width


def linear_step(
    kernel: TritonKernel,
    sig: Signature,
    table: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    y: torch.Tensor,
    weight: DeviceWeight,
    n: int,
    k: int,
    gate: Gate | None = None,
) -> CudaStep:
    """Return a step that writes y = x w^T + residual, or y = gated_norm(x) w^T + residual."""
    before: tuple[Any, ...] = (None, None, 0.0, 0)
    if gate is not None:
        before = (gate.norm, gate.gate, gate.eps, gate.width)
    arguments = (table, x, residual, y, *weight.arrays, *before, n, k)
    meta = weight.constants
    if sig["T"] <= FEW_ROWS:
        tile = kernel.tile("row", sig, row_tile(k))
        if gate is not None:
            tile["BK"] = min(tile["BK"], gate.step)
        grid = (cdiv(n, tile["BN"]), sig["T"])
        return kernel.launcher(sig, linear_row, grid, *arguments, **meta, **tile)
    tile = kernel.tile("rows", sig, rows_tile(sig))
    if gate is not None:
        # three tiles go into a step, so it is a narrow one
        tile |= {"BK": LEAST_STEP, "num_warps": 8}
    grid = (cdiv(n, tile["BN"]), cdiv(sig["T"], tile["BM"]))
    return kernel.launcher(sig, linear_rows, grid, *arguments, **meta, **tile, TYPE=dot_type(sig))


def row_tile(k: int) -> dict[str, int]:
    """Return the tile of a product with one row."""
    return {"BN": 32, "BK": block(k, 128, 256)}


def rows_tile(sig: Signature) -> dict[str, int]:
    """Return the tile of a product with several rows."""
    most = next((b for b in ROW_BLOCKS if b >= sig["T"]), ROW_BLOCKS[-1])
    return {"BM": most, "BN": 64, "BK": inner_block(sig)}


def inner_block(sig: Signature) -> int:
    """Return the columns of a step of a product.

    Without a matrix unit, so in float32, a thread holds whole rows of both tiles in registers.
    """
    return 64 if sig.precision is Precision.FAST else 32
