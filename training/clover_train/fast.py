"""Operations with hand-written gradients: fewer passes over memory, products in bf16.

With `Products.in_bf16` off, or for float64 tensors, everything is computed in the tensors' type.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Products:
    """Whether large matrix products round their inputs and outputs to bf16."""

    in_bf16 = False


def _cast(x: Tensor) -> Tensor:
    return x.bfloat16() if Products.in_bf16 and x.dtype == torch.float32 else x


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        xs, ws = _cast(x), _cast(w)
        ctx.save_for_backward(xs, ws)
        ctx.kind = x.dtype
        return (xs @ ws.t()).to(x.dtype)

    @staticmethod
    def backward(ctx, gy: Tensor):
        xs, ws = ctx.saved_tensors
        g = gy.to(xs.dtype)
        return (g @ ws).to(ctx.kind), (g.t() @ xs).to(ctx.kind)


def product(x: Tensor, w: Tensor) -> Tensor:
    """Return x Wᵀ for rows x [N, in] and W [out, in]."""
    return _Product.apply(x, w)


class _Grouped(torch.autograd.Function):
    # in float32: an expert's count of rows is another each time, and bf16 products of a new
    # shape are slow the first time
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, sizes: list[int]) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.sizes = sizes
        y = x.new_empty(len(x), w.shape[1])
        lo = 0
        for e, n in enumerate(sizes):
            if n:
                torch.mm(x[lo : lo + n], w[e].t(), out=y[lo : lo + n])
            lo += n
        return y

    @staticmethod
    def backward(ctx, gy: Tensor):
        x, w = ctx.saved_tensors
        g = gy.contiguous()
        gx, gw = torch.empty_like(x), torch.zeros_like(w)
        lo = 0
        for e, n in enumerate(ctx.sizes):
            if n:
                torch.mm(g[lo : lo + n], w[e], out=gx[lo : lo + n])
                torch.mm(g[lo : lo + n].t(), x[lo : lo + n], out=gw[e])
            lo += n
        return gx, gw, None


def grouped(x: Tensor, w: Tensor, sizes: list[int]) -> Tensor:
    """Return y[i] = W[e] x[i] for rows sorted by expert, sizes[e] of them each."""
    return _Grouped.apply(x, w, sizes)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, eps: float) -> Tensor:
        d = x.shape[-1]
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(d).add_(eps).rsqrt_()
        n = x * r
        ctx.save_for_backward(n, r, w)
        return n * w

    @staticmethod
    def backward(ctx, g: Tensor):
        n, r, w = ctx.saved_tensors
        gn = g * n
        gw = gn.reshape(-1, n.shape[-1]).sum(0)
        dot = (gn @ w)[..., None].div_(n.shape[-1])
        return (g * w).sub_(n * dot).mul_(r), gw, None


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) · w over the last axis."""
    return _Norm.apply(x, w, eps)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        taps = w.shape[1]
        length = x.shape[1] - taps + 1
        ctx.save_for_backward(x, w)
        y = x[:, :length] * w[:, 0]
        for j in range(1, taps):
            y.addcmul_(x[:, j : j + length], w[:, j])
        return y

    @staticmethod
    def backward(ctx, g: Tensor):
        x, w = ctx.saved_tensors
        length = g.shape[1]
        gx, gw = torch.zeros_like(x), torch.empty_like(w)
        for j in range(w.shape[1]):
            gx[:, j : j + length].addcmul_(g, w[:, j])
            gw[:, j] = (g * x[:, j : j + length]).sum((0, 1))
        return gx, gw


def convolve(x: Tensor, w: Tensor) -> Tensor:
    """Return y[n, t] = Σ_j w[:, j] x[n, t + j]: x [n, rows + taps - 1, C], w [C, taps]."""
    return _Convolve.apply(x, w)
