"""An independent float64 program of the whole model: straight formulas, numpy only.

It shares nothing with the package: weights are read from the files here, and every formula is
written out. A forward pass takes the ids of one segment and the committed state of one sequence,
and returns logits, hidden rows, routes and what the state would become; the caller stores it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

F = np.float64


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Return every tensor of a checkpoint in float64; F32, F16 and BF16 files."""
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    out = {}
    for name in files:
        raw = (folder / name).read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            lo, hi = (8 + size + offset for offset in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                words = np.frombuffer(raw[lo:hi], "<u2").astype(np.uint32) << 16
                values = words.view(np.float32)
            else:
                values = np.frombuffer(raw[lo:hi], {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
            out[key] = values.astype(F).reshape(entry["shape"])
    return out


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def unit(x: np.ndarray) -> np.ndarray:
    """Scale rows to length one, the epsilon inside the root."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


@dataclass
class GdnState:
    """ring [3, conv_dim] oldest first; S [value heads, dk, dv]."""

    ring: np.ndarray
    S: np.ndarray


@dataclass
class Outcome:
    """What one segment gave. `after[layer]`: GDN states after each row; `kv[layer]`: (k, v)."""

    logits: np.ndarray
    hidden: list[np.ndarray] = field(default_factory=list)
    experts: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    after: dict[int, list[GdnState]] = field(default_factory=dict)
    kv: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    finite: bool = True


class Oracle:
    """One checkpoint in float64."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.config: dict[str, Any] = {**config, **config.get("text_config", {})}
        c = self.config
        tensors = read_tensors(folder)
        nested = any(k.startswith("model.language_model.") for k in tensors)
        prefix = "model.language_model." if nested else "model."
        self.top = {
            k[len(prefix) :]: v
            for k, v in tensors.items()
            if k.startswith(prefix) and ".layers." not in k[len(prefix) - 1 :]
        }
        self.layers = [self._layer(tensors, f"{prefix}layers.{i}.") for i in range(self.depth)]
        tied = c.get("tie_word_embeddings", False)
        self.head = self.top["embed_tokens.weight"] if tied else tensors["lm_head.weight"]
        self.vocab = self.head.shape[0]
        self.G, self.H = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.K, self.V = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c["head_dim"]
        self.eps = c["rms_norm_eps"]
        rope = c["rope_parameters"]
        rotary = int(self.head_dim * rope.get("partial_rotary_factor", 1.0))
        self.frequencies = rope["rope_theta"] ** (-np.arange(0, rotary, 2, dtype=F) / rotary)
        self.conv_dim = 2 * self.G * self.K + self.H * self.V

    @property
    def depth(self) -> int:
        return self.config["num_hidden_layers"]

    def is_gdn(self, layer: int) -> bool:
        return self.config["layer_types"][layer] == "linear_attention"

    def _layer(self, tensors: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
        w = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
        if "mlp.experts.gate_up_proj" not in w:
            n = self.config["num_experts"]

            def stack(part: str) -> np.ndarray:
                return np.stack([w[f"mlp.experts.{e}.{part}_proj.weight"] for e in range(n)])

            w["mlp.experts.gate_up_proj"] = np.concatenate([stack("gate"), stack("up")], 1)
            w["mlp.experts.down_proj"] = stack("down")
        return w

    def empty_state(self) -> dict[int, GdnState]:
        """Return the state of no tokens: zero rings and memories of the GDN layers."""
        return {
            i: GdnState(np.zeros((3, self.conv_dim)), np.zeros((self.H, self.K, self.V)))
            for i in range(self.depth)
            if self.is_gdn(i)
        }

    def empty_kv(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        none = np.zeros((0, self.kv_heads, self.head_dim))
        return {i: (none, none) for i in range(self.depth) if not self.is_gdn(i)}

    def norm0(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * (1 + w)

    def forward(
        self,
        ids: list[int],
        position: int,
        state: dict[int, GdnState],
        kv: dict[int, tuple[np.ndarray, np.ndarray]],
        *,
        preview: bool = False,
    ) -> Outcome:
        """Run one segment behind `position` committed tokens; nothing passed in is changed.

        kv[layer] = (k, v), each [position, kv heads, head dim].
        """
        out = Outcome(np.zeros(0))
        h = self.top["embed_tokens.weight"][np.asarray(ids, int)]
        out.hidden.append(h)
        for i, w in enumerate(self.layers):
            x = self.norm0(h, w["input_layernorm.weight"])
            if not self.is_gdn(i):
                y, out.kv[i] = self.attention(w, x, position, kv[i], preview)
            elif preview:
                y = self.gdn_preview(w, x, state[i])
            else:
                y, out.after[i] = self.gdn_causal(w, x, state[i])
            h = h + y
            x = self.norm0(h, w["post_attention_layernorm.weight"])
            h = h + self.moe(w, x, preview, out)
            out.hidden.append(h)
        out.logits = self.norm0(h, self.top["norm.weight"]) @ self.head.T
        out.finite = bool(np.isfinite(out.logits).all() and np.isfinite(h).all())
        return out

    def split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return unit q and k [T, H, K] (one a value head) and v [T, H, V]."""
        n = self.G * self.K
        r = self.H // self.G
        q = unit(y[:, :n].reshape(-1, self.G, self.K)).repeat(r, axis=1)
        k = unit(y[:, n : 2 * n].reshape(-1, self.G, self.K)).repeat(r, axis=1)
        return q, k, y[:, 2 * n :].reshape(-1, self.H, self.V)

    def log_decay(self, w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        a = x @ w["linear_attn.in_proj_a.weight"].T + w["linear_attn.dt_bias"].ravel()
        return -np.exp(w["linear_attn.A_log"].ravel()) * np.logaddexp(0, a)

    def gated_out(self, w: dict[str, np.ndarray], x: np.ndarray, o: np.ndarray) -> np.ndarray:
        z = (x @ w["linear_attn.in_proj_z.weight"].T).reshape(o.shape)
        o = o / np.sqrt((o * o).mean(-1, keepdims=True) + self.eps)
        o = o * w["linear_attn.norm.weight"] * silu(z)
        return o.reshape(len(x), -1) @ w["linear_attn.out_proj.weight"].T

    def gdn_causal(
        self, w: dict[str, np.ndarray], x: np.ndarray, state: GdnState
    ) -> tuple[np.ndarray, list[GdnState]]:
        u = x @ w["linear_attn.in_proj_qkv.weight"].T
        taps = w["linear_attn.conv1d.weight"].reshape(self.conv_dim, 4)
        ext = np.concatenate([state.ring, u])
        q, k, v = self.split(silu(sum(ext[j : j + len(u)] * taps[:, j] for j in range(4))))
        q = q / np.sqrt(self.K)
        beta = sigmoid(x @ w["linear_attn.in_proj_b.weight"].T)
        decay = np.exp(self.log_decay(w, x))
        S, o, after = state.S, np.zeros((len(x), self.H, self.V)), []
        for t in range(len(x)):
            S = decay[t][:, None, None] * S
            r = np.einsum("hkv,hk->hv", S, k[t])
            S = S + k[t][:, :, None] * (beta[t][:, None] * (v[t] - r))[:, None, :]
            o[t] = np.einsum("hkv,hk->hv", S, q[t])
            after.append(GdnState(ext[t + 1 : t + 4], S))
        return self.gated_out(w, x, o), after

    def gdn_preview(self, w: dict[str, np.ndarray], x: np.ndarray, state: GdnState) -> np.ndarray:
        B = len(x)
        u = x @ w["linear_attn.in_proj_qkv.weight"].T
        taps = w["linear_attn.conv1d.weight"].reshape(self.conv_dim, 4)
        right = w["linear_attn.conv_right_weight"].reshape(self.conv_dim, 3)
        ext = np.concatenate([state.ring, u, np.zeros((3, self.conv_dim))])
        y = sum(ext[j : j + B] * taps[:, j] for j in range(4))
        y = y + sum(ext[3 + d : 3 + d + B] * right[:, d - 1] for d in (1, 2, 3))
        q, k, v = self.split(silu(y))
        scale = w["linear_attn.bd_softmax_logit_scale"].ravel()
        bias = w["linear_attn.bd_softmax_history_bias"].ravel()
        slope = w["linear_attn.bd_softmax_history_c"].ravel()
        logits = np.einsum("thk,shk->hts", q, k) * scale[:, None, None]
        history = np.broadcast_to((bias + slope * np.log(B / 32))[:, None, None], (self.H, B, 1))
        a = softmax(np.concatenate([logits, history], -1))
        remembered = np.einsum("thk,hkv->thv", q / np.sqrt(self.K), state.S)
        remembered = remembered * np.exp(self.log_decay(w, x))[:, :, None]
        o = np.einsum("hts,shv->thv", a[:, :, :B], v) + a[:, :, B].T[:, :, None] * remembered
        return self.gated_out(w, x, o)

    def rope(self, x: np.ndarray, position: int) -> np.ndarray:
        angle = (position + np.arange(len(x), dtype=F))[:, None] * self.frequencies
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        half = len(self.frequencies)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def attention(
        self,
        w: dict[str, np.ndarray],
        x: np.ndarray,
        position: int,
        past: tuple[np.ndarray, np.ndarray],
        preview: bool,
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        T, d = len(x), self.head_dim
        both = (x @ w["self_attn.q_proj.weight"].T).reshape(T, self.heads, 2 * d)
        q, gate = both[..., :d], both[..., d:]
        k = (x @ w["self_attn.k_proj.weight"].T).reshape(T, self.kv_heads, d)
        v = (x @ w["self_attn.v_proj.weight"].T).reshape(T, self.kv_heads, d)
        q = self.rope(self.norm0(q, w["self_attn.q_norm.weight"]), position)
        k = self.rope(self.norm0(k, w["self_attn.k_norm.weight"]), position)
        assert len(past[0]) == position
        r = self.heads // self.kv_heads
        keys = np.concatenate([past[0], k]).repeat(r, axis=1)
        values = np.concatenate([past[1], v]).repeat(r, axis=1)
        scores = np.einsum("thd,shd->hts", q, keys) / np.sqrt(d)
        if not preview:
            hidden = np.arange(len(keys)) > position + np.arange(T)[:, None]
            scores[:, hidden] = -np.inf
        o = np.einsum("hts,shd->thd", softmax(scores), values) * sigmoid(gate)
        return o.reshape(T, -1) @ w["self_attn.o_proj.weight"].T, (k, v)

    def moe(
        self, w: dict[str, np.ndarray], x: np.ndarray, preview: bool, out: Outcome
    ) -> np.ndarray:
        c = self.config
        p = softmax(x @ w["mlp.gate.weight"].T)
        n = p.shape[1]
        best = np.argsort(-p, axis=-1, kind="stable")[:, : c["num_experts_per_tok"]]
        kept = np.ones(n, bool)
        top_p = c.get("moe_block_coreset_top_p", 1.0)
        if preview and c.get("moe_block_coreset_enabled", False) and top_p < 1:
            mass = np.zeros(n)
            for row, ids in zip(p, best, strict=True):
                mass[ids] += row[ids]
            mass /= mass.sum()
            order = np.argsort(-mass, kind="stable")
            before = np.concatenate([[0], np.cumsum(mass[order])[:-1]])
            kept[order] = before < top_p
            kept[order[0]] = True
            allowed = np.where(kept, p, -1)
            k = min(c["num_experts_per_tok"], int(kept.sum()))
            best = np.argsort(-allowed, axis=-1, kind="stable")[:, :k]
        weight = np.take_along_axis(p, best, -1)
        weight = weight / weight.sum(-1, keepdims=True)
        out.experts.append(best)
        out.weights.append(weight)
        out.kept.append(kept)
        y = np.zeros_like(x)
        f = c["moe_intermediate_size"]
        for e in range(n):
            rows, slots = np.nonzero(best == e)
            if len(rows):
                both = x[rows] @ w["mlp.experts.gate_up_proj"][e].T
                hidden = silu(both[:, :f]) * both[:, f:]
                y[rows] += weight[rows, slots][:, None] * (hidden @ w["mlp.experts.down_proj"][e].T)
        hidden = silu(x @ w["mlp.shared_expert.gate_proj.weight"].T)
        hidden = hidden * (x @ w["mlp.shared_expert.up_proj.weight"].T)
        shared = hidden @ w["mlp.shared_expert.down_proj.weight"].T
        return y + sigmoid(x @ w["mlp.shared_expert_gate.weight"].T) * shared
