"""Up to four products of normalised rows in one launch: the start of every layer op.

y_i = act_i(rms_norm(x; norm) w_i^T). The norm is a factor of a column, applied to a tile of x as it
is loaded, and one of a row, applied to the sums; the squares are summed in the same loop. Tiles are
those of linear; a program finds its weight by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from clover_rt.spec import Signature
from clover_rt_cuda.kernel import DeviceWeight, TritonKernel, cdiv, dot_type
from clover_rt_cuda.kernels.gdn_gates import decay
from clover_rt_cuda.kernels.linear import FEW_ROWS, row_tile, rows_tile
from clover_rt_cuda.kernels.tools import ROWS, row_product, rows_product, sigmoid
from clover_rt_cuda.launch import CudaStep

MOST_PARTS = 4


@triton.jit
def project_part(
    x, count, norm, eps, rate, bias, codes, scale, zero, y, N, K, tile,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, ACT: tl.constexpr, TYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write one tile of one product; BM of 1: a single row without tiles of a matrix unit."""
    n = (tile * BN + tl.arange(0, BN)).to(tl.int64)
    ok = n < N
    rows = (tl.program_id(1) * BM + tl.arange(0, BM)).to(tl.int64)
    if BM == 1:
        row = tl.program_id(1).to(tl.int64)
        line, square = row_product(
            x, row, norm, codes, scale, zero, n, ok, K, FORMAT, GROUP, BN, BK
        )
        acc, squares = line[None, :], tl.zeros((1,), tl.float32) + square
    else:
        acc, squares = rows_product(
            x, rows, rows < count, norm, codes, scale, zero, n, ok, K,
            FORMAT, GROUP, TYPE, BM, BN, BK,
        )  # fmt: skip
    acc = acc / tl.sqrt(squares / K + eps)[:, None]
    if ACT == "decay":
        own = tl.load(rate + n, mask=ok, other=0)[None, :]
        acc = decay(acc, own, tl.load(bias + n, mask=ok, other=0)[None, :])
    elif ACT == "sigmoid":
        acc = sigmoid(acc)
    mask = (rows < count)[:, None] & ok[None, :]
    tl.store(y + rows[:, None] * N + n[None, :], acc, mask=mask)


@triton.jit
def project_kernel(
    table, x, norm, eps, rate, bias, K,
    c0, s0, z0, y0, N0, c1, s1, z1, y1, N1, c2, s2, z2, y2, N2, c3, s3, z3, y3, N3,
    F0: tl.constexpr, G0: tl.constexpr, A0: tl.constexpr,
    F1: tl.constexpr, G1: tl.constexpr, A1: tl.constexpr,
    F2: tl.constexpr, G2: tl.constexpr, A2: tl.constexpr,
    F3: tl.constexpr, G3: tl.constexpr, A3: tl.constexpr,
    TYPE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    count = tl.load(table + ROWS)
    if tl.program_id(1) * BM >= count:
        return
    tile = tl.program_id(0)
    end0 = (N0 + BN - 1) // BN
    end1 = end0 + (N1 + BN - 1) // BN
    end2 = end1 + (N2 + BN - 1) // BN
    if tile < end0:
        project_part(
            x, count, norm, eps, rate, bias, c0, s0, z0, y0, N0, K, tile,
            F0, G0, A0, TYPE, BM, BN, BK,
        )  # fmt: skip
    if c1 is not None:  # noqa: SIM102 - known when compiled
        if (tile >= end0) & (tile < end1):
            project_part(
                x, count, norm, eps, rate, bias, c1, s1, z1, y1, N1, K, tile - end0,
                F1, G1, A1, TYPE, BM, BN, BK,
            )  # fmt: skip
    if c2 is not None:  # noqa: SIM102 - known when compiled
        if (tile >= end1) & (tile < end2):
            project_part(
                x, count, norm, eps, rate, bias, c2, s2, z2, y2, N2, K, tile - end1,
                F2, G2, A2, TYPE, BM, BN, BK,
            )  # fmt: skip
    if c3 is not None:  # noqa: SIM102 - known when compiled
        if tile >= end2:
            project_part(
                x, count, norm, eps, rate, bias, c3, s3, z3, y3, N3, K, tile - end2,
                F3, G3, A3, TYPE, BM, BN, BK,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One product: act is "", "sigmoid" or "decay" (of gdn_gates)."""

    weight: DeviceWeight
    y: torch.Tensor
    width: int
    act: str = ""


def project_step(
    kernel: TritonKernel,
    sig: Signature,
    table: torch.Tensor,
    x: torch.Tensor,
    norm: torch.Tensor,
    parts: Sequence[Part],
    gates: tuple[Any, Any] = (None, None),
) -> CudaStep:
    """Return the step that makes up to four products of rows [T, D]; gates: of "decay"."""
    k = sig["D"]
    few = sig["T"] <= FEW_ROWS
    if few:
        tile = {"BM": 1, **kernel.tile("row", sig, row_tile(k))}
    else:
        tile = kernel.tile("rows", sig, rows_tile(sig))
    arguments: list[Any] = []
    meta: dict[str, Any] = {}
    for i in range(MOST_PARTS):
        part = parts[i] if i < len(parts) else None
        if part is None:
            arguments += (None, None, None, None, 0)
            meta |= {f"F{i}": "", f"G{i}": 0, f"A{i}": ""}
        else:
            arguments += (*part.weight.arrays, part.y, part.width)
            meta |= {f"F{i}": part.weight.format, f"G{i}": part.weight.group, f"A{i}": part.act}
    grid = (sum(cdiv(part.width, tile["BN"]) for part in parts), cdiv(sig["T"], tile["BM"]))
    head = (table, x, norm, float(sig.attr("eps")), *gates, k)
    meta |= {"TYPE": dot_type(sig), **tile}
    return kernel.launcher(sig, project_kernel, grid, *head, *arguments, **meta)
