"""gdn: four dispatches: projections with norm and gates, convolution, memory, and the way out.

A table with commits or verifies and previews takes one more: block_scan and block_memory both. The
groups of the scan move the rings. Scan and memory leave each value head times its gate and the
norm's weight, and its sum of squares; the last product divides by the root of that.
"""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature, TableClass
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.kernel import ITEMS, segments_of, too_wide_key, up
from clover_rt_vulkan.kernels.block_memory import ROWS, too_wide_value
from clover_rt_vulkan.kernels.causal_conv import conv_rows
from clover_rt_vulkan.kernels.gdn_gates import decay_of
from clover_rt_vulkan.kernels.layer import Layer
from clover_rt_vulkan.products import form_of
from clover_rt_vulkan.weights import matrices, vectors

# columns of a step of the last product, which has one head's
STEP = 32
TAPES = ("tape_k", "tape_v", "tape_g", "tape_beta")
TAPS = {"conv": "taps", "right": "right"}
BLOCK = ("logit_scale", "history_bias", "history_c")


class Gdn(Layer):
    """The first half of a Gated DeltaNet layer."""

    kept = ("qkv", "z", "a", "b", "out")

    def products(self, sig: Signature) -> dict[str, int]:
        heads = sig["H"]
        return {"a": heads, "b": heads, "qkv": sig["C"], "z": heads * sig["V"]}

    def supports(self, sig: Signature) -> str:
        if sig["V"] % STEP:
            return f"V={sig['V']} is no multiple of {STEP}, a step of the last product"
        if sig.format("a") != sig.format("b"):
            return "a and b have 2 formats; the gates take 1"
        if sig.table.has_preview and not sig.has("right"):
            return f"a {sig.table.value} table has previews, and there are 0 right taps"
        return too_wide_key(sig) or too_wide_value(self, sig) or super().supports(sig)

    def rooms(self, sig: Signature) -> dict[str, int]:
        rows, heads = sig["T"], sig["H"]
        return {
            "projected": 4 * rows * sum(self.products(sig).values()),
            "qkv": 4 * rows * sig["C"],
            "o": 4 * rows * heads * sig["V"],
            "sizes": 4 * rows * heads * _splits(sig),
        }

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        taps = {TAPS[name]: w for name, w in weights.items() if name in TAPS}
        others = {name: w for name, w in weights.items() if name in (*BLOCK, "norm")}
        return {
            "projection": self.projection(sig, weights, "input_norm"),
            "gates": decay_of(self.device, weights),
            "taps": vectors(self.device, taps),
            "out": matrices(self.device, {"w": weights["out"]})["w"],
            **vectors(self.device, others),
        }

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        room = {**operands, **self.room(sig, scratch)}
        at = self.starts(sig)
        gates, projection = prepared["gates"], prepared["projection"]
        launches = self.project(sig, operands, projection, room["projected"], gates)
        convolved = {**room, "u": room["projected"], "y": room["qkv"]}
        launches.append(conv_rows(self, sig, convolved, prepared["taps"], u_at=at["qkv"]))
        if sig.table is not TableClass.PREVIEW:
            launches.append(self._scan(sig, room, prepared))
        if sig.table.has_preview:
            launches.append(self._memory(sig, room, prepared))
        return Launches(self.device, launches + self._out(sig, room, prepared))

    def _scan(self, sig: Signature, room: Mapping[str, Tensor], prepared: Prepared) -> Dispatch:
        at = self.starts(sig)
        names = ("params", "qkv", "projected", "S", *TAPES, "ring", "o", "sizes")
        return self.dispatch(
            sig,
            "gdn_scan",
            (_splits(sig), sig["H"], segments_of(sig)),
            {**{name: room[name] for name in names}, "norm": prepared["norm"]},
            {"KEY": sig["K"]},
            g_from=at["a"],
            beta_from=at["b"],
            z_from=at["z"],
            u_from=at["qkv"],
            **{axis: sig[axis] for axis in ("G", "H", "V", "Q", "C", "J")},
        )

    def _memory(self, sig: Signature, room: Mapping[str, Tensor], prepared: Prepared) -> Dispatch:
        at, projected = self.starts(sig), room["projected"]
        names = ("params", "qkv", "S", "o", "sizes")
        return self.dispatch(
            sig,
            "block_memory",
            (sig["H"], up(sig["T"], ROWS)),
            {
                **{name: room[name] for name in names},
                **{name: prepared[name] for name in (*BLOCK, "norm")},
                "g": projected,
                "z": projected,
            },
            {"KEY": sig["K"], "COLUMNS": up(sig["V"], ITEMS), "GATED": 1, "ROWS": ROWS},
            g_at=at["a"],
            z_at=at["z"],
            splits=_splits(sig),
            **{axis: sig[axis] for axis in ("G", "H", "V")},
        )

    def _out(
        self, sig: Signature, room: Mapping[str, Tensor], prepared: Prepared
    ) -> list[Dispatch]:
        form, out = form_of(sig["T"]), prepared["out"]
        return [
            self.dispatch(
                sig,
                f"heads_{form.suffix}",
                (up(part.count, form.columns), up(sig["T"], form.rows)),
                {
                    "params": room["params"],
                    "x": room["o"],
                    "residual": room["h"],
                    "sizes": room["sizes"],
                    "y": room["y"],
                    **out.buffers("w", part),
                },
                {"HAS_RESIDUAL": 1, "HEAD": sig["V"], **form.constants, **out.constants("w")},
                K=sig["H"] * sig["V"],
                N=sig["D"],
                first=part.first,
                count=part.count,
                splits=_splits(sig),
                eps=float(sig.attr("eps")),
            )
            for part in out.parts
        ]


def _splits(sig: Signature) -> int:
    """Return the groups of the scan that share a head, and so the parts of its sum of squares."""
    return up(sig["V"], ITEMS)
