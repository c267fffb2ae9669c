"""attention: five dispatches: projections with norm, norm and rotation of heads with the cache's
rows, attention over splits of the prefix, their sum with the output gate, and the way out.

Where the keys are not split the sum is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import Launches
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.kernel import KV_TYPES, is_bf16
from clover_rt_vulkan.kernels.attend import attend, parts_bytes, too_wide
from clover_rt_vulkan.kernels.layer import Layer
from clover_rt_vulkan.kernels.linear import product
from clover_rt_vulkan.weights import matrices, vector

CACHE = ("page_table", "k_pool", "v_pool")


class Attention(Layer):
    """The first half of a gated-attention layer."""

    types = KV_TYPES
    kept = ("q", "gate", "k", "v", "o")

    def products(self, sig: Signature) -> dict[str, int]:
        wide, narrow = sig["H"] * sig["K"], sig["G"] * sig["K"]
        return {"q": wide, "gate": wide, "k": narrow, "v": narrow}

    def supports(self, sig: Signature) -> str:
        if is_bf16(sig) and sig["K"] % 2:
            return f"K={sig['K']} is odd, and 2 bfloat16 lie in a word"
        return too_wide(self, sig) or super().supports(sig)

    def rooms(self, sig: Signature) -> dict[str, int]:
        wide, narrow = sig["H"] * sig["K"], sig["G"] * sig["K"]
        return {
            "projected": 4 * sig["T"] * sum(self.products(sig).values()),
            "q": 4 * sig["T"] * wide,
            "k": 4 * sig["T"] * narrow,
            "mixed": 4 * sig["T"] * wide,
            "parts": parts_bytes(self, sig),
        }

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        norms = {name: weights[name] for name in ("q_norm", "k_norm")}
        return {
            "projection": self.projection(sig, weights, "input_norm"),
            "o": matrices(self.device, {"w": weights["o"]})["w"],
            **{
                name: vector(self.device, 1 + w.whole().values(np.float32), w.name)
                for name, w in norms.items()
            },
        }

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        room = {**operands, **self.room(sig, scratch)}
        projected, at = room["projected"], self.starts(sig)
        launches = self.project(sig, operands, prepared["projection"], projected)
        launches.append(self._heads(sig, room, prepared))
        rows = {name: room[name] for name in ("params", "q", "k", *CACHE)}
        rows |= {"v": projected, "gate": projected, "y": room["mixed"]}
        parts = room["parts"] if parts_bytes(self, sig) else room["mixed"]
        launches += attend(self, sig, rows, parts, v_at=at["v"], gate_at=at["gate"])
        out = {"params": room["params"], "x": room["mixed"], "residual": room["h"], "y": room["y"]}
        width = sig["H"] * sig["K"]
        launches += product(self, sig, out, prepared["o"], width, sig["D"])
        return Launches(self.device, launches)

    def _heads(self, sig: Signature, room: Mapping[str, Tensor], prepared: Prepared) -> Dispatch:
        projected, at = room["projected"], self.starts(sig)
        return self.dispatch(
            sig,
            "heads",
            (sig["H"] + 2 * sig["G"], sig["T"]),
            {
                **{name: room[name] for name in ("params", "angles", "q", "k", *CACHE)},
                **{name: prepared[name] for name in ("q_norm", "k_norm")},
                "q_raw": projected,
                "k_raw": projected,
                "v": projected,
            },
            {"KEY": sig["K"], "KV_BF16": is_bf16(sig)},
            q_raw_at=at["q"],
            k_raw_at=at["k"],
            v_at=at["v"],
            eps=float(sig.attr("eps")),
            **{axis: sig[axis] for axis in ("H", "G", "r", "slot_pages")},
        )
