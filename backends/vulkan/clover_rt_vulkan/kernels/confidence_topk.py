"""confidence_topk: tiles of 128 ids for 32 wanted rows at a time, then each row's join."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import up
from clover_rt_vulkan.products import Product, form_of, rounded
from clover_rt_vulkan.weights import matrices

# ids of a tile; BLOCK wanted rows share the scratch
IDS = 128
BLOCK = 32
STATS = 3


class ConfidenceTopk(Product):
    """Say what the wanted rows would pick, and how sure they are."""

    kept = ("head",)

    def supports(self, sig: Signature) -> str:
        top, vocab = int(sig.attr("top")), sig["vocab"]
        if top > min(vocab, IDS):
            return f"top={top} exceeds {min(vocab, IDS)}, the ids of a tile"
        return super().supports(sig) or self.too_shared(4 * up(vocab, IDS) + 1024, "tiles of ids")

    def rooms(self, sig: Signature) -> dict[str, int]:
        rows = up(sig["vocab"], IDS) * BLOCK
        best = 4 * rows * int(sig.attr("top"))
        tiles = {"best_ids": best, "best": best, "stats": 4 * rows * STATS}
        return tiles | self.rounded_rooms(sig, "h", sig["T"], sig["D"])

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return matrices(self.device, weights, IDS)["head"]

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        form = form_of(sig["W"])
        top, vocab, tiles = int(sig.attr("top")), sig["vocab"], up(sig["vocab"], IDS)
        table, h, picks = (operands[n] for n in ("params", "h", "picks"))
        room = self.room(sig, scratch)
        best = {name: room[name] for name in ("best_ids", "best", "stats")}
        joined = {"params": table, "picks": picks, **best}
        given = {**joined, "h": h, **{n: operands[n] for n in ("counts", "suppressed")}}
        chosen = {**form.constants, **prepared.constants("head")}
        checked = {"params": table, "h": h, "picks": picks}
        launches = [
            self.dispatch(sig, "start_picks", (1,), {"picks": picks}, words=2 * top + 4),
            self.dispatch(sig, "check_rows", (sig["T"],), checked, D=sig["D"]),
        ]
        shader = f"picks_{form.suffix}"
        if self.is_rounded(sig):
            room |= {"params": table, "h": h}
            launches.append(self.round_rows(sig, room, "h", sig["D"]))
            given |= rounded(room, "h")
            shader += "_int8"
        for first in range(0, sig["W"], BLOCK):
            rows = min(BLOCK, sig["W"] - first)
            for part in prepared.parts:
                launches.append(
                    self.dispatch(
                        sig,
                        shader,
                        (up(part.count, IDS), up(rows, form.rows)),
                        given | prepared.buffers("head", part),
                        chosen,
                        D=sig["D"],
                        vocab=vocab,
                        first=part.first,
                        count=part.count,
                        wanted0=first,
                        top=top,
                    )
                )
            launches.append(
                self.dispatch(
                    sig,
                    "join_picks",
                    (rows,),
                    joined,
                    {"TILES": tiles},
                    tiles=tiles,
                    wanted0=first,
                    top=top,
                )
            )
        return Launches(self.device, launches)
