"""attend: rows and heads of a KV head share its keys; keys are split where rows are few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import KV_TYPES, VulkanKernel, is_bf16, odd_pool, up

# query vectors of a group, and keys of a tile: one a work-item
VECTORS = 16
TILE = 128
MOST_COLUMNS = 4
# keys are split until a pass has about this many groups of work-items
GROUPS = 256
MOST_SPLITS = 64


class Attend(VulkanKernel):
    """Let each row attend to its slot's pages and its own segment."""

    types = KV_TYPES

    def supports(self, sig: Signature) -> str:
        most = MOST_COLUMNS * TILE
        if sig["K"] > most:
            return f"K={sig['K']} exceeds {most}, the columns of a group of work-items"
        bytes_ = 4 * (VECTORS * (up(sig["K"], 4) * 4 + TILE + 3) + TILE)
        refusal = super().supports(sig) or odd_pool(sig)
        return refusal or self.too_shared(bytes_, "columns of a head")

    def rooms(self, sig: Signature) -> dict[str, int]:
        splits = _cut(sig).splits
        if splits == 1:
            return {}
        return {"parts": 4 * sig["T"] * sig["H"] * splits * (sig["K"] + 2)}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        cut = _cut(sig)
        parts = self.room(sig, scratch).get("parts", operands["y"])
        attended = self.dispatch(
            sig,
            "attend",
            (up(sig["T"], cut.rows), sig["G"] * cut.blocks, cut.splits),
            {**operands, "parts": parts},
            {
                "ITEMS": TILE,
                "KEY": sig["K"],
                "COLUMNS": up(sig["K"], TILE),
                "VECTORS": VECTORS,
                "KV_BF16": is_bf16(sig),
            },
            G=sig["G"],
            each=sig["H"] // sig["G"],
            slot_pages=sig["slot_pages"],
            rows_each=cut.rows,
            heads_each=cut.heads,
            splits=cut.splits,
        )
        if cut.splits == 1:
            return Launches(self.device, [attended])
        merged = self.dispatch(
            sig,
            "merge_splits",
            (sig["H"], sig["T"]),
            {"params": operands["params"], "parts": parts, "y": operands["y"]},
            K=sig["K"],
            splits=cut.splits,
        )
        return Launches(self.device, [attended, merged])


@dataclass(frozen=True, slots=True)
class Cut:
    """How a pass is cut: rows and heads of a group, blocks of heads, parts of the keys."""

    rows: int
    heads: int
    blocks: int
    splits: int


def _cut(sig: Signature) -> Cut:
    each, rows = sig["H"] // sig["G"], sig["T"]
    heads = min(each, VECTORS)
    shared = min(VECTORS // heads, rows)
    blocks = up(each, heads)
    groups = up(rows, shared) * sig["G"] * blocks
    tiles = up(sig["slot_pages"] * PAGE_ROWS + rows, TILE)
    return Cut(shared, heads, blocks, max(1, min(up(GROUPS, groups), tiles, MOST_SPLITS)))
