"""confidence_topk: tiles of 128 ids for 32 wanted rows at a time, then each row's join."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ClKernel, at, ceil, local
from clover_rt_rocm.opencl.products import form_of
from clover_rt_rocm.opencl.weights import matrices

# as in confidence_topk.cl; BLOCK wanted rows share the scratch
IDS = 128
BLOCK = 32
STATS = 3


class ConfidenceTopk(ClKernel):
    """Say what the wanted rows would pick, and how sure they are."""

    kept = ("head",)

    def supports(self, sig: Signature) -> str:
        top, vocab = int(sig.attr("top")), sig["vocab"]
        if top > min(vocab, IDS):
            return f"top={top} exceeds {min(vocab, IDS)}, the ids of a tile"
        return super().supports(sig) or self.too_local(ceil(vocab, IDS) + 1024, "tiles of ids")

    def rooms(self, sig: Signature) -> dict[str, int]:
        rows = ceil(sig["vocab"], IDS) * BLOCK
        best = 4 * rows * int(sig.attr("top"))
        return {"best_ids": best, "best": best, "stats": 4 * rows * STATS}

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return matrices(self.device, weights, IDS)["head"]

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        form, room = form_of(sig["W"]), self.room(sig, scratch)
        table, h, picks = (operands[n] for n in ("params", "h", "picks"))
        top, vocab, wanted = int(sig.attr("top")), sig["vocab"], at(sig, "wanted")
        best = [room[n] for n in ("best_ids", "best", "stats")]
        weight = prepared.text("head", "weight", "product_of")
        sources = ("rank", "product", weight, "confidence_topk")
        given = form.given
        launches = [
            self.launch(sig, sources, "start_picks", (1,), picks, 2 * top + 4, **given),
            self.launch(
                sig, sources, "check_rows", (sig["T"],), table, h, picks, sig["D"], **given
            ),
        ]
        for first in range(0, sig["W"], BLOCK):
            rows = min(BLOCK, sig["W"] - first)
            for part in prepared.parts:
                launches.append(
                    self.launch(
                        sig,
                        sources,
                        "tile_picks",
                        (ceil(part.count, IDS), ceil(rows, form.rows)),
                        table,
                        at(sig, "segments"),
                        at(sig, "controls"),
                        wanted,
                        at(sig, "tokens"),
                        h,
                        *prepared.arguments(part),
                        operands["counts"],
                        operands["suppressed"],
                        picks,
                        *best,
                        sig["D"],
                        vocab,
                        part.first,
                        part.count,
                        first,
                        top,
                        items=form.items,
                        **given,
                    )
                )
            tiles = ceil(vocab, IDS)
            launches.append(
                self.launch(
                    sig,
                    sources,
                    "join_picks",
                    (rows,),
                    table,
                    wanted,
                    picks,
                    *best,
                    tiles,
                    first,
                    top,
                    local(tiles, 1),
                    **given,
                )
            )
        return Launches(self.device, launches)
