"""The whole model on a batch of chunks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clover_train.attention import Attention, norm0
from clover_train.config import Config
from clover_train.gdn import Gdn
from clover_train.layout import Batch
from clover_train.moe import Moe
from clover_train.quant import Linear


class Layer(nn.Module):
    def __init__(self, c: Config, kind: str) -> None:
        super().__init__()
        self.eps = c.rms_norm_eps
        self.mixer = Gdn(c) if kind == "linear_attention" else Attention(c)
        self.moe = Moe(c)
        self.input_norm = nn.Parameter(torch.zeros(c.hidden_size))
        self.post_norm = nn.Parameter(torch.zeros(c.hidden_size))

    def forward(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        y = self.mixer(norm0(h, self.input_norm, self.eps), batch)
        # rows that are not there stay zero: a narrow block's last rows look ahead at them
        h = h + y * batch.valid[:, None]
        y, balance = self.moe(norm0(h, self.post_norm, self.eps), batch)
        return h + y, balance


class Model(nn.Module):
    """Hidden rows of a batch, and logits of chosen rows."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.3)
        self.layers = nn.ModuleList(Layer(c, kind) for kind in c.layer_types)
        self.norm = nn.Parameter(torch.zeros(c.hidden_size))
        self.head = Linear(c.vocab_size, c.hidden_size, 0.5)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return hidden rows [N, H] after the last layer and the mean balance loss."""
        h = self.embed[batch.ids] * batch.valid[:, None]
        balance = torch.zeros(())
        for layer in self.layers:
            h, b = layer(h, batch)
            balance = balance + b / len(self.layers)
        return h, balance

    def logits(self, h: Tensor) -> Tensor:
        # float32: the count of scored rows is another each time
        return norm0(h, self.norm, self.c.rms_norm_eps) @ self.head.value().t()
