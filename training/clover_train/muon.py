"""Muon for matrices (orthogonalised momentum), its work shared between processes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from clover_train.fast import Products


def orthogonalise(m: Tensor) -> Tensor:
    """Newton-Schulz, five steps, on the last two axes."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m / (m.square().sum((-2, -1), keepdim=True).sqrt() + 1e-7)
    if Products.in_bf16:
        x = x.bfloat16()
    turned = x.shape[-2] > x.shape[-1]
    if turned:
        x = x.transpose(-1, -2)
    for _ in range(5):
        s = x @ x.transpose(-1, -2)
        x = a * x + (b * s + c * (s @ s)) @ x
    return (x.transpose(-1, -2) if turned else x).to(m.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; every process does its share of the matrices, then they swap."""

    def __init__(self, params, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if world > 1 else 0
        for group in self.param_groups:
            params = sorted(group["params"], key=lambda p: -p.numel())
            load, owner = [0] * world, []
            for p in params:
                least = load.index(min(load))
                owner.append(least)
                load[least] += p.numel()
            flats = [p.new_zeros(n) for n in load]
            at = [0] * world
            spans = []
            for p, o in zip(params, owner, strict=True):
                spans.append((o, at[o]))
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                if o == rank:
                    nesterov = p.grad.lerp(buffer, group["momentum"])
                    update = orthogonalise(nesterov)
                    update = update * max(1, p.shape[-2] / p.shape[-1]) ** 0.5
                    flats[o][at[o] : at[o] + p.numel()] = update.reshape(-1)
                at[o] += p.numel()
            if world > 1:
                for o, flat in enumerate(flats):
                    dist.broadcast(flat, o)
            for p, (o, start) in zip(params, spans, strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(flats[o][start : start + p.numel()].view_as(p), alpha=-group["lr"])
