"""Gated attention: clean rows causal, noisy blocks over the clean rows before them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clover_train.config import Config
from clover_train.fast import product, rms
from clover_train.layout import Batch
from clover_train.quant import Linear


def norm0(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """RMS norm with the weight stored around zero."""
    return rms(x, 1 + w, eps)


class Attention(nn.Module):
    """The full-attention mixer of one layer."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        width = c.num_attention_heads * c.head_dim
        self.q = Linear(2 * width, c.hidden_size)
        self.k = Linear(c.num_key_value_heads * c.head_dim, c.hidden_size)
        self.v = Linear(c.num_key_value_heads * c.head_dim, c.hidden_size)
        self.o = Linear(c.hidden_size, width, 0.3)
        self.q_norm = nn.Parameter(torch.zeros(c.head_dim))
        self.k_norm = nn.Parameter(torch.zeros(c.head_dim))
        i = torch.arange(0, c.rotary_dims, 2) / c.rotary_dims
        self.register_buffer("frequencies", c.rope_theta**-i, persistent=False)

    def _rope(self, x: Tensor, angle: Tensor) -> Tensor:
        n = angle.shape[-1]
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b, rest = x.split([n, n, x.shape[-1] - 2 * n], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        c = self.c
        d, heads, kv = c.head_dim, c.num_attention_heads, c.num_key_value_heads
        every = product(x, torch.cat([self.q.value(), self.k.value(), self.v.value()]))
        every = every.view(-1, 2 * heads + 2 * kv, d)
        q, k, v = every.split([2 * heads, kv, kv], 1)
        q, gate = q.unflatten(1, (heads, 2)).unbind(2)
        q = norm0(q, self.q_norm, c.rms_norm_eps)
        k = norm0(k, self.k_norm, c.rms_norm_eps)
        turned = self._rope(torch.cat([q, k], 1), batch.positions[:, None] * self.frequencies)
        both = torch.cat([turned, v], 1)
        both = F.pad(both, (0, 0, 0, 0, 0, 1))
        outs = []
        for group in batch.groups:
            n, L = group.rows.shape
            rows = both.index_select(0, group.rows.reshape(-1)).view(n, L, -1, d).transpose(1, 2)
            gq, gk, gv = rows.split((heads, kv, kv), 1)
            gk, gv = (t.repeat_interleave(heads // kv, 1) for t in (gk, gv))
            o = F.scaled_dot_product_attention(gq, gk, gv, attn_mask=group.mask.to(gq.dtype))
            outs.append(o.transpose(1, 2).reshape(n * L, heads * d))
        o = torch.cat(outs).index_select(0, batch.inverse)
        return self.o(o * gate.reshape(-1, heads * d).sigmoid())
