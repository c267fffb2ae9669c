"""Config and weights -> the graph of layer ops, with the layout of the state between passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clover_rt.graph import Graph
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.ops import OPS
from clover_rt.ops.rope import rope_angles
from clover_rt.spec import PAGE_ROWS, DType, HostWeight, Role, StepLayout

# a block that starts at the last position of the context is still previewed whole
BLOCK_REACH = 256


@dataclass(frozen=True)
class Capacity:
    """How much state a plan keeps.

    slots    sequences and snapshots: rings, memories, tapes, page tables, counts
    context  tokens that one sequence may commit
    pages    pages of 64 KV rows, shared by the slots
    draft    rows of the widest verify
    """

    slots: int
    context: int
    pages: int
    draft: int
    layout: StepLayout = field(default_factory=StepLayout)

    @property
    def slot_pages(self) -> int:
        return -(-self.context // PAGE_ROWS)


def build_graph(
    config: ModelConfig, weights: Mapping[str, HostWeight], capacity: Capacity
) -> Graph:
    """Return the checked graph; raises BadGraph where weights and config disagree."""
    return _Builder(config, weights, capacity).build()


class _Builder:
    def __init__(
        self, config: ModelConfig, weights: Mapping[str, HostWeight], capacity: Capacity
    ) -> None:
        self.config = config
        self.weights = weights
        self.capacity = capacity
        self.graph = Graph()

    def build(self) -> Graph:
        c, g, cap = self.config, self.graph, self.capacity
        slots = {"slots": cap.slots}
        pages = {**slots, "slot_pages": cap.slot_pages, "pages": cap.pages}
        page_table = g.state("page_table", DType.I32, (cap.slots, cap.slot_pages))
        counts = g.state("counts", DType.I32, (cap.slots, c.vocab_size))
        words = -(-c.vocab_size // 32)
        suppressed = g.state("suppressed", DType.U32, (cap.slots, words))
        angles = rope_angles(cap.context + BLOCK_REACH, c.rotary_dims // 2, c.rope_theta)
        self.angles = g.constant("angles", DType.F32, angles)
        self.page_table = page_table

        g.add(
            "begin",
            "begin",
            {"page_table": page_table, "counts": counts},
            {**slots, "slot_pages": cap.slot_pages, "vocab": c.vocab_size},
        )
        width = {"D": c.hidden_size}
        h = g.add("embed", "embed", {"embed": self.weight("embed")}, {**width, **self.vocab})
        for i, kind in enumerate(c.layer_types):
            prefix = f"layers.{i}."
            if kind is LayerType.GDN:
                h = self._gdn(prefix, h, {**width, **slots})
            else:
                h = self._attention(prefix, h, {**width, **pages})
            h = self._moe(prefix, h, width)
        g.add(
            "pick",
            "pick",
            {
                "h": h,
                "norm": self.weight("norm"),
                "head": self.weight("head"),
                "counts": counts,
                "suppressed": suppressed,
            },
            {**width, **slots, **self.vocab, "top": 1},
            eps=c.eps,
        )
        g.check()
        return g

    @property
    def vocab(self) -> dict[str, int]:
        return {"vocab": self.config.vocab_size}

    def weight(self, name: str) -> str:
        return self.graph.weight(self.weights[name], name)

    def _weights(self, op: str, prefix: str) -> dict[str, str]:
        """Return the op's weight operands that the checkpoint has, by value name."""
        names = [w.name for w in OPS[op].weights if prefix + w.name in self.weights]
        return {name: self.weight(prefix + name) for name in names}

    def _gdn(self, prefix: str, h: str, axes: Mapping[str, int]) -> str:
        c, g = self.config, self.graph
        sizes = {
            **axes,
            "G": c.key_heads,
            "H": c.value_heads,
            "K": c.key_dim,
            "V": c.value_dim,
            "C": c.conv_channels,
            "J": c.conv_kernel,
            "Q": self.capacity.draft,
        }
        spec = OPS["gdn"]
        states = {
            o.name: g.state(prefix + o.name, o.dtype, spec.shape(o.name, sizes))
            for o in spec.operands
            if o.role is Role.STATE
        }
        operands = {"h": h, **states, **self._weights("gdn", prefix)}
        out = g.add(prefix + "gdn", "gdn", operands, sizes, eps=c.eps)
        replay = {k: v for k, v in sizes.items() if k != "D"}
        g.add(prefix + "advance", "advance", states, replay)
        return out

    def _attention(self, prefix: str, h: str, axes: Mapping[str, int]) -> str:
        c, g = self.config, self.graph
        sizes = {
            **axes,
            "H": c.heads,
            "G": c.kv_heads,
            "K": c.head_dim,
            "r": c.rotary_dims // 2,
            "P": self.capacity.context + BLOCK_REACH,
        }
        shape = (self.capacity.pages * PAGE_ROWS, c.kv_heads * c.head_dim)
        operands = {
            "h": h,
            "angles": self.angles,
            "page_table": self.page_table,
            **{n: g.state(prefix + n, DType.KV, shape) for n in ("k_pool", "v_pool")},
            **self._weights("attention", prefix),
        }
        return g.add(prefix + "attention", "attention", operands, sizes, eps=c.eps)

    def _moe(self, prefix: str, h: str, axes: Mapping[str, int]) -> str:
        c, g = self.config, self.graph
        sizes = {
            **axes,
            "E": c.experts,
            "R": c.experts_per_token,
            "F": c.expert_width,
            "Fs": c.shared_width,
            "segments": self.capacity.layout.segments,
        }
        operands = {"h": h, **self._weights("moe", prefix)}
        for name in ("shared_gate", "shared_up", "shared_down"):
            full = prefix + name
            operands[name] = g.weight(self.weights[full].stacked(), full)
        top_p = c.block.coreset_top_p if c.block is not None else 1.0
        return g.add(prefix + "moe", "moe", operands, sizes, eps=c.eps, top_p=top_p)
