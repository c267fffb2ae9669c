"""moe: up to 64 rows in five dispatches: router, routes, hidden rows, down, and their sum.

The groups of a pass of up to 64 rows find the rows of their expert themselves. More rows take two
more: pairs are sorted by expert, and cut into tiles. A weight in parts takes one more a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.buffers import Part
from clover_rt.spec import HostWeight, Signature, Weight
from clover_rt_vulkan.device import Launches, VulkanBuffer
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.kernel import ITEMS, up
from clover_rt_vulkan.kernels.layer import Layer
from clover_rt_vulkan.products import EIGHT, FEW, MANY, Form, form_of
from clover_rt_vulkan.weights import Matrix, matrices

# rows among which a group looks for those of its expert (pairs.glsl)
MOST_GROUPED = 64
ROUTED = ("expert_gate", "expert_up", "expert_down")
SHARED = ("shared_gate", "shared_up", "shared_down")


class Moe(Layer):
    """The second half of a layer."""

    kept = ("router", "shared_scale", *ROUTED, *SHARED)

    def products(self, sig: Signature) -> dict[str, int]:
        return {"router": sig["E"], "shared_scale": 1}

    def supports(self, sig: Signature) -> str:
        for gate, into, _ in (ROUTED, SHARED):
            if sig.format(gate) != sig.format(into):
                formats = [sig.format(name)[0].value for name in (gate, into)]
                return f"{gate} and {into} have {len(set(formats))} formats; one dispatch has 1"
        items = self._route_items()
        if sig["E"] > 32 * items:
            return f"E={sig['E']} exceeds {32 * items}, the experts that a group ranks"
        nbytes = 8 * sig["E"] + 4 * sig["R"] + items * (4 * sig["R"] + 8) + 512
        return super().supports(sig) or self.too_shared(nbytes, "experts")

    def rooms(self, sig: Signature) -> dict[str, int]:
        rows, pairs, experts = sig["T"], sig["T"] * sig["R"], sig["E"]
        return {
            "logits": 4 * rows * (experts + 1),
            "ids": 4 * pairs,
            "weights": 4 * pairs,
            "hidden": 4 * (pairs * sig["F"] + rows * sig["Fs"]),
            "outputs": 4 * (pairs + rows) * sig["D"],
            **({} if _is_few(sig) else _list_rooms(sig)),
        }

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return {
            "projection": self.projection(sig, weights, "post_norm"),
            **self._experts("routed", [weights[n] for n in ROUTED]),
            **self._experts("every", [weights[n] for n in SHARED]),
        }

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        room = {**operands, **self.room(sig, scratch)}
        launches = self.project(sig, operands, prepared["projection"], room["logits"])
        launches += [self._route(sig, room), *self._lists(sig, room)]
        norm = {"x": room["h"], "norm": prepared["projection"].norm, "hidden": room["hidden"]}
        launches += self._products(sig, room, "hidden", norm, prepared, sig["F"], sig["Fs"])
        down = {"hidden": room["hidden"], "y": room["outputs"]}
        launches += self._products(sig, room, "down", down, prepared, sig["D"], sig["D"])
        return Launches(self.device, [*launches, self._combine(sig, room)])

    def _experts(self, name: str, weights: Sequence[HostWeight]) -> dict[str, Matrix]:
        """Copy experts to the device: gate and up of each one behind the other, and down."""
        gate, into, down = weights
        pieces = Alternating(gate, into)
        shape = (2 * gate.shape[0], *gate.shape[1:])
        both = HostWeight(gate.name, gate.format, shape, pieces, gate.group, gate.release)
        return {
            f"hidden {name}": matrices(self.device, {"w": both}, multiple=2)["w"],
            f"down {name}": matrices(self.device, {"w": down})["w"],
        }

    def _route_items(self) -> int:
        return 256 if self.device.limits.items >= 256 else 128

    def _route(self, sig: Signature, room: Mapping[str, Tensor]) -> Dispatch:
        top_p, experts, choices = float(sig.attr("top_p")), sig["E"], sig["R"]
        return self.dispatch(
            sig,
            "route_rows",
            (sig["T"],),
            {name: room[name] for name in ("params", "logits", "ids", "weights")},
            {
                "ITEMS": self._route_items(),
                "EXPERTS": experts,
                "CHOICES": choices,
                "HAS_CORESET": int(top_p < 1 and sig.table.has_preview),
            },
            E=experts,
            R=choices,
            top_p=top_p,
        )

    def _lists(self, sig: Signature, room: Mapping[str, Tensor]) -> list[Dispatch]:
        """Return the dispatches that sort many pairs by expert and cut them into tiles."""
        if _is_few(sig):
            return []
        order = {name: room[name] for name in ("params", "ids", "order", "offsets")}
        tiles = {name: room[name] for name in ("params", "offsets", "tiles")}
        sizes = {"E": sig["E"], "R": sig["R"]}
        rows = {"ROWS": MANY.rows}
        return [
            self.dispatch(sig, "group_rows", (sig["E"],), order, **sizes),
            self.dispatch(sig, "list_tiles", (1,), tiles, rows, E=sig["E"]),
        ]

    def _products(
        self,
        sig: Signature,
        room: Mapping[str, Tensor],
        what: str,
        rows: Mapping[str, Tensor | VulkanBuffer],
        prepared: Prepared,
        width: int,
        every_width: int,
    ) -> list[Dispatch]:
        """Return the dispatches of "hidden" or "down": of routed experts and of the shared one.

        The shared expert's groups stand behind those of the first part of the routed ones.
        """
        form, pairs = _form(sig), sig["T"] * sig["R"]
        routed, every = prepared[f"{what} routed"], prepared[f"{what} every"]
        (shared,) = every.parts
        is_few, is_hidden = _is_few(sig), what == "hidden"
        found = ("params", "ids") if is_few else ("params", "tiles", "order")
        most = pairs if is_few else _tiles(sig)
        sizes: dict[str, int | float] = {"F": sig["F"], "Fs": sig["Fs"], "pairs": pairs}
        if is_hidden:
            sizes |= {"K": sig["D"], "eps": float(sig.attr("eps"))}
        else:
            sizes["D"] = sig["D"]
        if is_few or is_hidden:
            sizes["R"] = sig["R"]
        if not is_few:
            sizes["most"] = most
        # a routed expert has two rows of "hidden": gate and up
        each = 2 if is_hidden else 1
        constants = routed.constants("routed") | every.constants("every") | form.constants
        constants["RAGGED"] = max(m.constants("w")["RAGGED"] for m in (routed, every))
        return [
            self.dispatch(
                sig,
                f"moe_{what}_{form.suffix}",
                (up(max(width, every_width), form.columns), most + behind),
                {
                    **{name: room[name] for name in found},
                    **rows,
                    **routed.buffers("routed", part),
                    **every.buffers("every", shared),
                },
                constants,
                first=part.first // each,
                count=part.count // each,
                **sizes,
            )
            for part, behind in _with_rows(routed.parts, up(sig["T"], form.rows))
        ]

    def _combine(self, sig: Signature, room: Mapping[str, Tensor]) -> Dispatch:
        rows, depth = sig["T"], sig["D"]
        buffers = {
            **{name: room[name] for name in ("params", "ids", "weights")},
            "y": room["outputs"],
            "from_shared": room["outputs"],
            "shared_gate": room["logits"],
            "residual": room["h"],
            "h": room["y"],
        }
        return self.dispatch(
            sig,
            "combine",
            (up(depth, ITEMS), rows),
            buffers,
            from_shared_at=rows * sig["R"] * depth,
            shared_gate_at=self.starts(sig)["shared_scale"],
            R=sig["R"],
            D=depth,
        )


class Alternating(Sequence[Weight]):
    """The experts of two weights in turn: pieces [1, N, K], made when they are asked for."""

    def __init__(self, *weights: HostWeight) -> None:
        self.weights = weights

    def __len__(self) -> int:
        return sum(w.shape[0] for w in self.weights)

    @overload
    def __getitem__(self, index: int) -> Weight: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Weight]: ...

    def __getitem__(self, index: int | slice) -> Weight | Sequence[Weight]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index >= len(self):
            raise IndexError(index)
        expert, which = divmod(index, len(self.weights))
        weight = self.weights[which]
        if len(weight.pieces) == weight.shape[0]:
            return weight.pieces[expert]
        for piece in weight.pieces:
            if expert < piece.shape[0]:
                return piece[expert : expert + 1]
            expert -= piece.shape[0]
        raise IndexError(index)


def _is_few(sig: Signature) -> bool:
    return sig["T"] <= MOST_GROUPED


def _form(sig: Signature) -> Form:
    if not _is_few(sig):
        return MANY
    return form_of(sig["T"]) if sig["T"] <= FEW.rows else EIGHT


def _tiles(sig: Signature) -> int:
    """Return the most tiles that the pairs of a pass can be cut into."""
    pairs = sig["T"] * sig["R"]
    return pairs // MANY.rows + min(sig["E"], pairs)


def _list_rooms(sig: Signature) -> dict[str, int]:
    pairs = sig["T"] * sig["R"]
    return {"order": 4 * pairs, "offsets": 4 * (sig["E"] + 1), "tiles": 16 * (1 + _tiles(sig))}


def _with_rows(
    parts: Sequence[Part[VulkanBuffer]], groups: int
) -> list[tuple[Part[VulkanBuffer], int]]:
    """Return each part with the groups of rows that stand behind its own."""
    return [(part, 0 if i else groups) for i, part in enumerate(parts)]
