"""attend: rows and heads of a KV head share its keys; keys are split where rows are few."""

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
# keys are split until a pass has about this many groups of work-items
GROUPS = 256
MOST_SPLITS = 64


class Attend(VulkanKernel):
    """Let each row attend to its slot's pages and its own segment."""

    types = KV_TYPES

    def supports(self, sig: Signature) -> str:
        return too_wide(self, sig) or super().supports(sig) or odd_pool(sig)

    def rooms(self, sig: Signature) -> dict[str, int]:
        nbytes = parts_bytes(sig)
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


def parts_bytes(sig: Signature) -> int:
    """Return the bytes of what the splits of the keys leave; 0 where they are not split."""
    splits = _cut(sig).splits
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
    cut = _cut(sig)
    # what is left out is not read
    rows = {"gate": given["q"], **given}
    gated = {"HAS_GATE": int("gate" in given)}
    attended = kernel.dispatch(
        sig,
        "attend",
        (up(sig["T"], cut.rows), sig["G"] * cut.blocks, cut.splits),
        {**rows, "parts": parts},
        {
            "ITEMS": TILE,
            "KEY": sig["K"],
            "COLUMNS": up(sig["K"], TILE),
            "VECTORS": VECTORS,
            "KV_BF16": is_bf16(sig),
            **gated,
        },
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
