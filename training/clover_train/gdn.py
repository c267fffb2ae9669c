"""Gated DeltaNet: chunked causal scan of clean rows, block softmax of noisy blocks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clover_train.config import Config
from clover_train.fast import convolve, product, rms
from clover_train.layout import CHUNK, Batch
from clover_train.quant import Linear


def unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class Gdn(nn.Module):
    """The linear-attention mixer of one layer."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        Hv = c.linear_num_value_heads
        self.qkv = Linear(c.conv_dim, c.hidden_size)
        self.z = Linear(c.value_dim, c.hidden_size)
        self.out = Linear(c.hidden_size, c.value_dim, 0.3)
        self.a = nn.Parameter(torch.randn(Hv, c.hidden_size) * 0.5 * c.hidden_size**-0.5)
        self.b = nn.Parameter(torch.randn(Hv, c.hidden_size) * c.hidden_size**-0.5)
        self.conv = nn.Parameter(torch.randn(c.conv_dim, 4) * 0.2)
        with torch.no_grad():
            self.conv[:, 3] += 0.6
        self.conv_right = nn.Parameter(torch.randn(c.conv_dim, 3) * 0.2)
        self.A_log = nn.Parameter(torch.linspace(1, 8, Hv).log())
        dt = torch.logspace(math.log10(0.003), -1, Hv)
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = nn.Parameter(torch.ones(c.linear_value_head_dim))
        self.logit_scale = nn.Parameter(torch.full((Hv,), 4.0))
        self.history_bias = nn.Parameter(torch.ones(Hv))
        self.history_c = nn.Parameter(torch.full((Hv,), 0.5))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        c = self.c
        Hk, Hv, dk, dv = (
            c.linear_num_key_heads,
            c.linear_num_value_heads,
            c.linear_key_head_dim,
            c.linear_value_head_dim,
        )
        at = batch.clean * CHUNK
        both = product(x, torch.cat([self.qkv.value(), self.z.value()]))
        # split and unbind, not slices: the gradient of a slice fills a whole tensor with zeros
        u, z = both.split([c.conv_dim, c.value_dim], 1)
        u = u.reshape(-1, CHUNK, c.conv_dim)
        g = -self.A_log.exp() * F.softplus(x @ self.a.t() + self.dt_bias)
        beta = (x[:at] @ self.b.t()).sigmoid()
        y = F.silu(self._convolve(u, batch))

        def heads(t: Tensor, d: int) -> Tensor:
            return t.unflatten(-1, (-1, d)).transpose(1, 2)

        q, k, v = y.split([c.key_dim, c.key_dim, c.value_dim], -1)
        q = unit(heads(q, dk)).repeat_interleave(Hv // Hk, 1)
        k = unit(heads(k, dk)).repeat_interleave(Hv // Hk, 1)
        v = heads(v, dv)
        g = g.view(-1, CHUNK, Hv).transpose(1, 2)
        beta = beta.view(-1, CHUNK, Hv).transpose(1, 2)
        parts = [t.split([batch.clean, batch.noisy]) for t in (q, k, v, g)]
        (q, q1), (k, k1), (v, v1), (g, g1) = parts
        causal, before = self._scan(q * dk**-0.5, k, v, g, beta, batch)
        outs = [causal]
        if batch.noisy:
            state = before.index_select(0, batch.parent)
            outs.append(self._preview(q1, k1, v1, g1, state, batch))
        o = torch.cat(outs).transpose(1, 2).reshape(-1, Hv, dv)
        o = rms(o, self.norm, c.rms_norm_eps)
        o = o.reshape(-1, Hv * dv) * F.silu(z)
        return self.out(o)

    def _convolve(self, u: Tensor, batch: Batch) -> Tensor:
        n, C = batch.clean, u.shape[-1]
        tails = torch.cat([u.new_zeros(1, 3, C), u[: n - 1, CHUNK - 3 :]])
        tails = tails.masked_fill(batch.is_first[:, None, None], 0)
        left = torch.cat([tails, tails.index_select(0, batch.parent)]) if batch.noisy else tails
        ext = torch.cat([left, u], 1)
        y = convolve(ext, self.conv)
        if not batch.noisy:
            return y
        right = F.pad(u[n:, 1:], (0, 0, 0, 3))
        causal, noisy = y.split([n, batch.noisy])
        return torch.cat([causal, noisy + convolve(right, self.conv_right)])

    def _scan(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return outputs [clean, heads, 32, dv] and the state before each chunk."""
        dv = v.shape[-1]
        G = g.cumsum(-1)
        lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
        D = (G[..., :, None] - G[..., None, :]).masked_fill(~lower, float("-inf")).exp()
        A = (beta[..., None] * D * (k @ k.transpose(-1, -2))).tril(-1)
        A = A + torch.eye(CHUNK)
        grow = G.exp()
        rhs = torch.cat([beta[..., None] * v, (beta * grow)[..., None] * k], -1)
        solved = torch.linalg.solve_triangular(A, rhs, upper=False, unitriangular=True)
        P = D * (q @ k.transpose(-1, -2))
        carried = (G[..., -1:] - G).exp()[..., None] * k
        decay = grow[..., -1]

        # one more chunk of nothing stands for the chunks that a sequence lacks
        def spread(t: Tensor) -> Tensor:
            padded = torch.cat([t, torch.zeros_like(t[:1])])
            return padded.index_select(0, batch.scan.reshape(-1)).unflatten(0, batch.scan.shape)

        U, W = (spread(t) for t in solved.split([dv, solved.shape[-1] - dv], -1))
        carried, decay = spread(carried).transpose(-1, -2), spread(decay)
        S = torch.zeros(U.shape[0], U.shape[2], k.shape[-1], dv)
        states, rests = [], []
        steps = zip(*(t.unbind(1) for t in (U, W, carried, decay)), strict=True)
        for u, w, k_t, shrink in steps:
            states.append(S)
            R = torch.baddbmm(u.flatten(0, 1), w.flatten(0, 1), S.flatten(0, 1), alpha=-1)
            R = R.view_as(u)
            rests.append(R)
            S = shrink[:, :, None, None] * S + k_t @ R

        def gather(parts: list[Tensor]) -> Tensor:
            return torch.stack(parts, 1).flatten(0, 1).index_select(0, batch.scan_inverse)

        before, R = gather(states), gather(rests)
        return grow[..., None] * (q @ before) + P @ R, before

    def _preview(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, batch: Batch
    ) -> Tensor:
        real = torch.arange(CHUNK) < batch.width[:, None]
        logits = (q @ k.transpose(-1, -2)) * self.logit_scale[:, None, None]
        logits = logits.masked_fill(~real[:, None, None], float("-inf"))
        history = self.history_bias + self.history_c * (batch.width[:, None] / CHUNK).log()
        history = history[:, :, None, None].expand(-1, -1, CHUNK, 1)
        a = torch.cat([logits, history], -1).softmax(-1)
        past = g.exp()[..., None] * ((q * q.shape[-1] ** -0.5) @ state)
        inside, before = a.split([CHUNK, 1], -1)
        return inside @ v + before * past
