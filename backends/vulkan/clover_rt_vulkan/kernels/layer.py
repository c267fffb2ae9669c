"""What the layer ops share: their first products with the norm in front, and joined weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from clover_rt.backend import Tensor
from clover_rt.buffers import Part
from clover_rt.spec import HostWeight, Signature
from clover_rt_vulkan.device import VulkanBuffer
from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.kernel import VulkanKernel, up
from clover_rt_vulkan.products import form_of
from clover_rt_vulkan.weights import Matrix, matrices, vector

# weights of one dispatch
FORMATS, PRODUCTS = 2, 4


@dataclass(frozen=True, slots=True)
class Projection:
    """A norm's weight, and weights one behind the other: those of one format, then of another."""

    norm: VulkanBuffer
    matrices: tuple[Matrix, ...]


class Layer(VulkanKernel):
    """A layer op in float32, whatever the precision; only the KV cache may be narrower."""

    @abstractmethod
    def products(self, sig: Signature) -> dict[str, int]:
        """Return the columns of each product that the op begins with, by its weight."""

    def supports(self, sig: Signature) -> str:
        formats = [sig.format(names[0])[0].value for names in self._by_format(sig)]
        if len(formats) > FORMATS:
            names = ", ".join(self.products(sig))
            return f"{names} have {len(formats)} formats; one dispatch has {FORMATS}"
        nbytes, most = self.scratch(sig), self.device.max_binding_bytes
        if nbytes > most:
            return f"{nbytes} bytes of scratch memory exceed {most}, the largest buffer"
        return super().supports(sig)

    def starts(self, sig: Signature) -> dict[str, int]:
        """Return the word of `project`'s result that each product starts at, by its weight."""
        out, column = {}, 0
        for names in self._by_format(sig):
            for name in names:
                out[name] = sig["T"] * column
                column += self.products(sig)[name]
        return out

    def projection(
        self, sig: Signature, weights: Mapping[str, HostWeight], norm: str
    ) -> Projection:
        """Copy the weights of the products to the device; the norm's is stored less 1."""
        scale = 1 + weights[norm].whole().values(np.float32)
        joined = [joint([weights[n] for n in names]) for names in self._by_format(sig)]
        kept = tuple(matrices(self.device, {"w": w})["w"] for w in joined)
        return Projection(vector(self.device, scale, weights[norm].name), kept)

    def project(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        projection: Projection,
        y: Tensor,
        gates: Mapping[str, VulkanBuffer] | None = None,
    ) -> list[Dispatch]:
        """Return the dispatches of the products of rows h: one where no weight is in parts.

        gates  rate and bias of gdn_gates, whose a and b are the first two products
        """
        form, rows = form_of(sig["T"]), sig["T"]
        w, other = projection.matrices[0], projection.matrices[-1]
        has_other = len(projection.matrices) > 1
        total = sum(self.products(sig).values())
        ends = [start // rows for start in self.starts(sig).values()][1:] + [total] * PRODUCTS
        none = {"rate": projection.norm, "bias": projection.norm}
        chosen = {"GATES": int(gates is not None), "HAS_OTHER": int(has_other), **form.constants}
        chosen |= w.constants("w") | other.constants("other")
        behind = sum(part.count for part in w.parts)
        launches = []
        for own, more in zip_longest(w.parts, other.parts if has_other else ()):
            first, second = own or _nothing(w), more or _nothing(other)
            columns = up(first.count, form.columns) + up(second.count, form.columns)
            launches.append(
                self.dispatch(
                    sig,
                    f"project_{form.suffix}",
                    (columns, up(rows, form.rows)),
                    {
                        "params": operands["params"],
                        "x": operands["h"],
                        "norm": projection.norm,
                        **w.buffers("w", first),
                        **other.buffers("other", second),
                        **(none if gates is None else gates),
                        "y": y,
                    },
                    chosen,
                    K=sig["D"],
                    N=total,
                    end0=ends[0],
                    end1=ends[1],
                    end2=ends[2],
                    first=first.first,
                    count=first.count,
                    other_first=behind + second.first,
                    other_count=second.count,
                    T=rows,
                    eps=float(sig.attr("eps")),
                )
            )
        return launches

    def _by_format(self, sig: Signature) -> list[list[str]]:
        """Return the products' weights in order, those of the first one's format first."""
        found: dict[object, list[str]] = {}
        for name in self.products(sig):
            found.setdefault(sig.format(name), []).append(name)
        return list(found.values())


def joint(weights: Sequence[HostWeight]) -> HostWeight:
    """Return weights of one format as one, joined along axis 0; nothing is read."""
    first = weights[0]
    pieces = tuple(piece for w in weights for piece in w.pieces)
    shape = (sum(w.shape[0] for w in weights), *first.shape[1:])
    name = ", ".join(w.name for w in weights)
    return HostWeight(name, first.format, shape, pieces, first.group, first.release)


def _nothing(matrix: Matrix) -> Part[VulkanBuffer]:
    """Return a part without rows."""
    return Part(0, 0, matrix.parts[0].buffers)
