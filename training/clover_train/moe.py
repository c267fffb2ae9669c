"""Mixture of experts with the block coreset, on flat rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clover_train.config import Config
from clover_train.fast import grouped
from clover_train.layout import CHUNK, Batch
from clover_train.quant import Linear, Stack


def route(p: Tensor, batch: Batch, k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Return experts [N, k] and whether a slot is used; noisy blocks choose in their coreset."""
    with torch.no_grad():
        value, best = p.topk(k, -1)
        used = batch.valid[:, None].expand(-1, k)
        if top_p >= 1 or not batch.noisy:
            return best, used
        at = batch.clean * CHUNK
        E = p.shape[1]
        mass = torch.zeros(len(p) - at, E).scatter_(1, best[at:], value[at:])
        mass *= batch.valid[at:, None]
        total = mass.view(-1, CHUNK, E).sum(1)
        share, order = total.sort(dim=-1, descending=True, stable=True)
        share = share / share.sum(-1, keepdim=True)
        before = share.cumsum(-1) - share
        kept = torch.zeros_like(total, dtype=torch.bool)
        kept.scatter_(1, order, before < top_p)
        allowed = kept.repeat_interleave(CHUNK, 0)
        value, inside = torch.where(allowed, p[at:], -1.0).topk(k, -1)
        best = torch.cat([best[:at], inside])
        used = used & torch.cat([torch.ones(at, k, dtype=torch.bool), value > 0])
        return best, used


class Moe(nn.Module):
    """Routed experts and a gated shared expert; returns the output and the balance loss."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.k, self.top_p = c.num_experts_per_tok, c.coreset_top_p
        H, E, W = c.hidden_size, c.num_experts, c.moe_intermediate_size
        S = c.shared_expert_intermediate_size
        self.router = nn.Parameter(torch.randn(E, H) * H**-0.5)
        self.gate, self.up = Stack(E, W, H), Stack(E, W, H)
        self.down = Stack(E, H, W, 0.3)
        self.shared_gate, self.shared_up = Linear(S, H), Linear(S, H)
        self.shared_down = Linear(H, S, 0.3)
        self.shared_weight = nn.Parameter(torch.zeros(1, H))

    def forward(self, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        p = (x @ self.router.t()).softmax(-1)
        best, used = route(p, batch, self.k, self.top_p)
        weight = p.gather(1, best) * used
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(1e-9)
        E = p.shape[1]
        flat = torch.where(used, best, E).reshape(-1)
        order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=E + 1)
        sizes = counts[:E].tolist()
        order = order[: sum(sizes)]
        rows = order // self.k
        xs = x.index_select(0, rows)
        h = F.silu(grouped(xs, self.gate(), sizes)) * grouped(xs, self.up(), sizes)
        y = grouped(h, self.down(), sizes) * weight.reshape(-1)[order][:, None]
        out = torch.zeros_like(x).index_add(0, rows, y)
        s = F.silu(self.shared_gate(x)) * self.shared_up(x)
        out = out + (x @ self.shared_weight.t()).sigmoid() * self.shared_down(s)
        real = batch.valid.sum()
        fraction = counts[:E] / (real * self.k)
        balance = E * (fraction * ((p * batch.valid[:, None]).sum(0) / real)).sum()
        return out, balance
