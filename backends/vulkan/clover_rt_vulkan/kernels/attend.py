"""attend: rows and heads of a KV head share its keys; keys are split where rows are few.

Passes of blocks of rows take a form whose groups share keys among up to 256 query vectors, the 32
rows of a block with 8 heads, or 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.kernel import KV_TYPES, VulkanKernel, is_bf16, odd_pool, up

# query vectors of a group, and keys of a tile: one a work-item
VECTORS = 16
TILE = 128
MOST_COLUMNS = 4
# of the form for blocks: work-items of a group, four a query vector; keys of a tile, columns of
# keys and rows of values in local memory; the widest head
BLOCK_ITEMS = (1024, 512, 256, 128)
# a work-item needs up to 128 registers: cards that run 64 in step have them for the largest group
WIDE_STEP = 64
BLOCK_TILE, BLOCK_SLICE, BLOCK_VALUES = 64, 16, 8
BLOCK_KEY = 256
# rows that a sequence has in a pass of blocks
BLOCK_ROWS = 8
# keys are split until a pass has about this many work-items
PASS_ITEMS = 1 << 15
MOST_SPLITS = 64


class Attend(VulkanKernel):
    """Let each row attend to its slot's pages and its own segment."""

    types = KV_TYPES

    def supports(self, sig: Signature) -> str:
        return too_wide(self, sig) or super().supports(sig) or odd_pool(sig)

    def rooms(self, sig: Signature) -> dict[str, int]:
        nbytes = parts_bytes(self, sig)
        return {"parts": nbytes} if nbytes else {}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        parts = self.room(sig, scratch).get("parts", operands["y"])
        return Launches(self.device, attend(self, sig, operands, parts))


def too_wide(kernel: VulkanKernel, sig: Signature) -> str:
    """Return "" where a group of work-items holds its query vectors, else a refusal."""
    most = MOST_COLUMNS * TILE
    if sig["K"] > most:
        return f"K={sig['K']} exceeds {most}, the columns of a group of work-items"
    nbytes = 4 * (VECTORS * (up(sig["K"], 4) * 4 + TILE + 3) + TILE)
    return kernel.too_shared(nbytes, "columns of a head")


def parts_bytes(kernel: VulkanKernel, sig: Signature) -> int:
    """Return the bytes of what the splits of the keys leave; 0 where they are not split."""
    splits = _cut(kernel, sig).splits
    return 4 * sig["T"] * sig["H"] * splits * (sig["K"] + 2) if splits > 1 else 0


def attend(
    kernel: VulkanKernel,
    sig: Signature,
    given: Mapping[str, Tensor],
    parts: Tensor,
    **starts: int,
) -> list[Dispatch]:
    """Return the dispatches: one, and one more where the keys are split.

    given   params, q, k, v, page_table, the pools and y; with `gate`, y is gated
    starts  the words that rows start at in their tensors, by the names of the shader
    """
    cut = _cut(kernel, sig)
    # what is left out is not read
    rows = {"gate": given["q"], **given}
    gated = {"HAS_GATE": int("gate" in given)}
    attended = kernel.dispatch(
        sig,
        cut.shader,
        (up(sig["T"], cut.rows), sig["G"] * cut.blocks, cut.splits),
        {**rows, "parts": parts},
        {"KEY": sig["K"], "KV_BF16": is_bf16(sig), **gated, **cut.constants},
        G=sig["G"],
        each=sig["H"] // sig["G"],
        slot_pages=sig["slot_pages"],
        rows_each=cut.rows,
        heads_each=cut.heads,
        splits=cut.splits,
        **starts,
    )
    if cut.splits == 1:
        return [attended]
    merged = kernel.dispatch(
        sig,
        "merge_splits",
        (sig["H"], sig["T"]),
        {**{name: rows[name] for name in ("params", "gate", "y")}, "parts": parts},
        gated,
        K=sig["K"],
        splits=cut.splits,
        gate_at=starts.get("gate_at", 0),
    )
    return [attended, merged]


@dataclass(frozen=True, slots=True)
class Cut:
    """How a pass is cut: rows and heads of a group, blocks of heads, parts of the keys."""

    shader: str
    constants: Mapping[str, int]
    rows: int
    heads: int
    blocks: int
    splits: int


def _cut(kernel: VulkanKernel, sig: Signature) -> Cut:
    items = _block_items(kernel, sig)
    if items:
        shader, vectors, constants = "attend_many", items // 4, {"ITEMS": items}
    else:
        items, shader, vectors = TILE, "attend", VECTORS
        constants = {"ITEMS": TILE, "COLUMNS": up(sig["K"], TILE), "VECTORS": VECTORS}
    each, rows = sig["H"] // sig["G"], sig["T"]
    heads = min(each, vectors)
    shared = min(vectors // heads, rows)
    blocks = up(each, heads)
    groups = up(rows, shared) * sig["G"] * blocks
    tiles = up(sig["slot_pages"] * PAGE_ROWS + rows, TILE)
    splits = max(1, min(up(PASS_ITEMS, groups * items), tiles, MOST_SPLITS))
    return Cut(shader, constants, shared, heads, blocks, splits)


def _block_items(kernel: VulkanKernel, sig: Signature) -> int:
    """Return the work-items of a group of the form for blocks; 0: the pass has none, or no room."""
    rows, width, limits = sig["T"], sig["K"], kernel.device.limits
    are_blocks = sig.table.has_preview or rows >= BLOCK_ROWS * sig["slots"]
    if rows < BLOCK_ROWS or width > BLOCK_KEY or not are_blocks:
        return 0
    for items in BLOCK_ITEMS if limits.subgroup >= WIDE_STEP else BLOCK_ITEMS[1:]:
        vectors = items // 4
        numbers = max(
            BLOCK_SLICE * (vectors + BLOCK_TILE),
            BLOCK_VALUES * (vectors + up(width, 64) * 64),
        )
        nbytes = 4 * (numbers + 3 * vectors + BLOCK_TILE)
        needed = rows * sig["H"] // sig["G"]
        is_filled = 2 * needed > vectors or items == BLOCK_ITEMS[-1]
        if is_filled and items <= limits.items and nbytes <= limits.shared:
            return items
    return 0
