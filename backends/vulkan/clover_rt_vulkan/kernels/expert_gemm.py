"""expert_gemm: a list of tiles, gate and up with their activation, down."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.kernel import up
from clover_rt_vulkan.products import FEW, MANY, Form, Product, form_of, rounded
from clover_rt_vulkan.weights import matrices

# a previewed block of 32 rows gives each expert that it uses about three rows
MOST_FEW = 64


class ExpertGemm(Product):
    """Run each expert's gated network on the rows that chose it."""

    kept = ("gate", "up", "down")

    def rooms(self, sig: Signature) -> dict[str, int]:
        pairs = sig["T"] * sig["R"]
        return {
            "hidden": 4 * pairs * sig["F"],
            "tiles": 16 * (1 + _tiles(sig)),
            **self.rounded_rooms(sig, "x", sig["T"], sig["D"]),
            **self.rounded_rooms(sig, "hidden", pairs, sig["F"]),
        }

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return matrices(self.device, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        form, is_rounded = _form(sig), self.is_rounded(sig)
        room = {**operands, **self.room(sig, scratch)}
        shared = {name: room[name] for name in ("params", "tiles")}
        shared["order"] = operands.get("order", room["tiles"])
        rows, hidden = {"x": room["x"]}, {"hidden": room["hidden"]}
        suffix = form.suffix
        launches = []
        if sig.has("order"):
            buffers = {name: room[name] for name in ("params", "offsets", "tiles")}
            constants = {"ROWS": form.rows}
            launches.append(self.dispatch(sig, "list_tiles", (1,), buffers, constants, E=sig["E"]))
        if is_rounded:
            launches.append(self.round_rows(sig, room, "x", sig["D"]))
            rows, suffix = rounded(room, "x"), f"{form.suffix}_int8"
        chosen = {"GROUPED": int(sig.has("order")), **form.constants}
        sizes = {"D": sig["D"], "F": sig["F"]}
        gate, into, down = (prepared[n] for n in self.kept)
        for g, u in zip(gate.parts, into.parts, strict=True):
            launches.append(
                self.dispatch(
                    sig,
                    f"hidden_{suffix}",
                    (up(sig["F"], form.columns), _tiles(sig)),
                    {
                        **shared,
                        **rows,
                        **hidden,
                        **gate.buffers("gate", g),
                        **into.buffers("up", u),
                    },
                    chosen | gate.constants("gate") | into.constants("up"),
                    top_k=int(sig.attr("top_k")),
                    first=g.first,
                    count=g.count,
                    **sizes,
                )
            )
        if is_rounded:
            launches.append(self.round_rows(sig, room, "hidden", sig["F"], sig["R"]))
            hidden = rounded(room, "hidden")
        for part in down.parts:
            launches.append(
                self.dispatch(
                    sig,
                    f"down_{suffix}",
                    (up(sig["D"], form.columns), _tiles(sig)),
                    {**shared, **hidden, **down.buffers("down", part), "y": operands["y"]},
                    chosen | down.constants("down"),
                    first=part.first,
                    count=part.count,
                    **sizes,
                )
            )
        return Launches(self.device, launches)


def _form(sig: Signature) -> Form:
    """Return the form: experts share the rows, so the many-row one pays later than in `linear`."""
    if sig["E"] == 1 or sig["T"] == 1:
        return form_of(sig["T"])
    return FEW if sig["T"] <= MOST_FEW else MANY


def _tiles(sig: Signature) -> int:
    """Return the most tiles that the pairs of a pass can be cut into."""
    pairs, rows = sig["T"] * sig["R"], _form(sig).rows
    return up(pairs, rows) if not sig.has("order") else pairs // rows + min(sig["E"], pairs)
