"""attend: rows and heads of a KV head share its keys; keys are split where rows are few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import KV_TYPES, ClKernel, at, ceil, kv_type, local

# as in attend.cl
VECTORS = 16
TILE = 128
MOST_COLUMNS = 4
# keys are split until a pass has about this many groups of work-items
GROUPS = 256
MOST_SPLITS = 64


class Attend(ClKernel):
    """Let each row attend to its slot's pages and its own segment."""

    types = KV_TYPES

    def supports(self, sig: Signature) -> str:
        most = MOST_COLUMNS * TILE
        if sig["K"] > most:
            return f"K={sig['K']} exceeds {most}, the columns of a group of work-items"
        bytes_ = 4 * VECTORS * (sig["K"] + TILE + 3) + 8 * TILE
        return super().supports(sig) or self.too_local(bytes_, "columns of a head")

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
        cut, table, y = _cut(sig), operands["params"], operands["y"]
        parts = self.room(sig, scratch).get("parts", y)
        names = ("q", "k", "v", "page_table", "k_pool", "v_pool")
        given = {"VECTORS": VECTORS, "COLUMNS": ceil(sig["K"], TILE), **kv_type(sig)}
        launches = [
            self.launch(
                sig,
                "attend",
                "attend",
                (ceil(sig["T"], cut.rows), sig["G"] * cut.blocks, cut.splits),
                table,
                at(sig, "segments"),
                at(sig, "row_segment"),
                *(operands[n] for n in names),
                y,
                parts,
                sig["G"],
                sig["H"] // sig["G"],
                sig["K"],
                sig["slot_pages"],
                cut.rows,
                cut.heads,
                cut.splits,
                local(VECTORS * sig["K"]),
                items=TILE,
                **given,
            )
        ]
        if cut.splits > 1:
            grid = (sig["H"], sig["T"])
            more = (table, parts, y, sig["K"], cut.splits)
            launches.append(self.launch(sig, "attend", "merge_splits", grid, *more, **given))
        return Launches(self.device, launches)


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
    blocks = ceil(each, heads)
    groups = ceil(rows, shared) * sig["G"] * blocks
    tiles = ceil(sig["slot_pages"] * PAGE_ROWS + rows, TILE)
    return Cut(shared, heads, blocks, max(1, min(ceil(GROUPS, groups), tiles, MOST_SPLITS)))
