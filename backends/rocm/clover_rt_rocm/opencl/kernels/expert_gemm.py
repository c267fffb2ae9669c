"""expert_gemm: a list of tiles, gate and up with their activation, down; rows may be rounded."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_rocm.opencl.device import Launches
from clover_rt_rocm.opencl.kernel import ceil
from clover_rt_rocm.opencl.products import FEW, MANY, ROUNDED, Form, Product, form_of
from clover_rt_rocm.opencl.weights import matrices

# a previewed block of 32 rows gives each expert that it uses about three rows
MOST_FEW = 64


class ExpertGemm(Product):
    """Run each expert's gated network on the rows that chose it."""

    kept = ("gate", "up", "down")

    def plain_form(self, sig: Signature) -> Form:
        """Return the form: experts share the rows, so many rows pay later than in `linear`."""
        if sig["E"] == 1 or sig["T"] == 1:
            return form_of(sig["T"])
        return FEW if sig["T"] <= MOST_FEW else MANY

    def rooms(self, sig: Signature) -> dict[str, int]:
        pairs = sig["T"] * sig["R"]
        return {
            "hidden": 4 * pairs * sig["F"],
            "tiles": 16 * (1 + self._tiles(sig)),
            **self.rounded_room(sig, "rounded", sig["T"], sig["D"]),
            **self.rounded_room(sig, "rounded_hidden", pairs, sig["F"]),
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
        form, room = self.form(sig), self.room(sig, scratch)
        table, x, y = (operands[n] for n in ("params", "x", "y"))
        tiles, hidden = room["tiles"], room["hidden"]
        order = operands.get("order", tiles)
        given = dict(form.given)
        if sig.has("order"):
            given["GROUPED"] = 1
        weights = (prepared[n].text(n, "weight", "product_of") for n in self.kept)
        sources = ("product", *weights, "expert_gemm")
        launches = []
        if sig.has("order"):
            more = (table, operands["offsets"], sig["E"], tiles)
            launches.append(
                self.launch(sig, sources, "list_tiles", (1,), *more, items=256, **given)
            )
        if form is ROUNDED:
            launches.append(self.round_rows(sig, table, x, room["rounded"], sig["D"]))
            x = room["rounded"]
        gate, up, down = (prepared[n] for n in self.kept)
        sizes = (sig["D"], sig["F"])
        for g, u in zip(gate.parts, up.parts, strict=True):
            launches.append(
                self.launch(
                    sig,
                    sources,
                    "gate_up",
                    (ceil(sig["F"], form.columns), self._tiles(sig)),
                    table,
                    tiles,
                    order,
                    x,
                    *gate.arguments(g),
                    *up.arguments(u),
                    hidden,
                    int(sig.attr("top_k")),
                    *sizes,
                    g.first,
                    g.count,
                    items=form.items,
                    **given,
                )
            )
        if form is ROUNDED:
            to = room["rounded_hidden"]
            launches.append(self.round_rows(sig, table, hidden, to, sig["F"], sig["R"]))
            hidden = to
        for d in down.parts:
            launches.append(
                self.launch(
                    sig,
                    sources,
                    "down",
                    (ceil(sig["D"], form.columns), self._tiles(sig)),
                    table,
                    tiles,
                    order,
                    hidden,
                    *down.arguments(d),
                    y,
                    *sizes,
                    d.first,
                    d.count,
                    items=form.items,
                    **given,
                )
            )
        return Launches(self.device, launches)

    def _tiles(self, sig: Signature) -> int:
        """Return the most tiles that the pairs of a pass can be cut into."""
        pairs, rows = sig["T"] * sig["R"], self.plain_form(sig).rows
        return ceil(pairs, rows) if not sig.has("order") else pairs // rows + min(sig["E"], pairs)
