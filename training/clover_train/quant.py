"""Matrices that q4 rounding applies to, with a straight-through gradient when it is on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clover_train.fast import product

GROUP = 32


class Rounding:
    """Whether matrices are rounded; one switch for the whole program."""

    is_on = False


def round_q4(w: Tensor) -> Tensor:
    """Return the nearest q4 values: groups of 32, code 8 is zero, the extreme maps to code 0."""
    grouped = w.reshape(*w.shape[:-1], -1, GROUP)
    extreme = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
    scale = (extreme / -8).half().float()
    divisor = torch.where(scale == 0, 1.0, scale)
    codes = (grouped / divisor + 8).round().clamp(0, 15)
    return ((codes - 8) * scale).reshape(w.shape)


def _straight_through(w: Tensor) -> Tensor:
    if not Rounding.is_on:
        return w
    return w + (round_q4(w.detach()) - w.detach())


class Linear(nn.Module):
    """y = x Wᵀ, W [out, in]."""

    def __init__(self, rows: int, columns: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) * gain * columns**-0.5)

    def value(self) -> Tensor:
        """Return W as it takes part in products."""
        return _straight_through(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.value())


class Stack(nn.Module):
    """A matrix for every expert, [E, out, in]."""

    def __init__(self, count: int, rows: int, columns: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, rows, columns) * gain * columns**-0.5)

    def forward(self) -> Tensor:
        return _straight_through(self.weight)
