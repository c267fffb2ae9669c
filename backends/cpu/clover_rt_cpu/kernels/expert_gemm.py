"""expert_gemm: experts with rows are taken from one queue by the workers.

A worker gathers an expert's rows, converts gate, up and down span by span, and multiplies; it
writes rows of y that no other expert has, so the order of experts changes nothing. A single
expert (the shared one) is split by the rows of its weights instead. At most 256 rows are taken at
a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.kernel import Array, CpuKernel, Shapes, table_of, views
from clover_rt_cpu.products import Multiplier, Product, Span, Tiles, spans_of, tiles_for
from clover_rt_cpu.weights import experts

MOST_ROWS = 256


@dataclass(frozen=True, slots=True)
class Work:
    """One worker's scratch, and the products into the hidden width and out of it."""

    x: Array
    hidden: Array
    other: Array
    y: Array
    inward: Any
    outward: Any


class ExpertGemm(CpuKernel):
    """Run each expert's gated network on the rows that chose it."""

    def shapes(self, sig: Signature) -> Shapes:
        inward, outward = _tiles(sig)
        rows = max(inward.padded(_most(sig)), outward.padded(_most(sig)))
        each = {"x": sig["D"], "hidden": sig["F"], "other": sig["F"], "y": sig["D"]}
        return {
            **{name: (self.workers.count, rows, width) for name, width in each.items()},
            **Product.shapes(self.workers, inward, "in_"),
            **Product.shapes(self.workers, outward, "out_"),
        }

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return {name: experts(weight) for name, weight in weights.items()}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        x, y = views(operands, "x", "y")
        grouped = sig.has("order")
        index: Any = views(operands, "order", "offsets") if grouped else (None, None)
        order, offsets = index
        choices = int(sig.attr("top_k"))
        inward, outward = _tiles(sig)
        room = self.room(sig, scratch)
        alone = [self._alone(room, i, inward, outward) for i in range(self.workers.count)]
        shared = self._shared(room, inward, outward)
        cost = 3 * sig["D"] * sig["F"]

        def run(work: Work, expert: int, pairs: Array) -> None:
            names = ("gate", "up", "down")
            tiles = (inward, inward, outward)
            gate, up, down = (
                spans_of([prepared[name][expert]], t.height)
                for name, t in zip(names, tiles, strict=True)
            )
            for lo in range(0, len(pairs), MOST_ROWS):
                part = pairs[lo : lo + MOST_ROWS]
                n = len(part)
                np.take(x, part // choices, axis=0, out=work.x[:n], mode="clip")
                work.x[n : inward.padded(n)] = 0
                _multiply(work.inward, work.x, n, gate, work.hidden)
                _multiply(work.inward, work.x, n, up, work.other)
                _gate(work.hidden[:n], work.other[:n])
                work.hidden[n : outward.padded(n)] = 0
                _multiply(work.outward, work.hidden, n, down, work.y)
                y[part] = work.y[:n]

        @np.errstate(all="ignore")
        def step() -> None:
            n = table.rows
            if not n:
                return
            if not grouped:
                run(shared, 0, np.arange(n))
                return
            bounds = offsets.tolist()
            busy = [e for e in range(len(bounds) - 1) if bounds[e + 1] > bounds[e]]
            if len(busy) == 1:
                run(shared, busy[0], order[bounds[busy[0]] : bounds[busy[0] + 1]])
                return
            left = deque(sorted(busy, key=lambda e: bounds[e] - bounds[e + 1]))

            def job(worker: int) -> None:
                with np.errstate(all="ignore"):
                    while left:
                        try:
                            e = left.popleft()
                        except IndexError:
                            return
                        run(alone[worker], e, order[bounds[e] : bounds[e + 1]])

            pairs = bounds[-1] - bounds[0]
            self.workers.run(job, cost * max(pairs, 4 * len(busy)))

        return step

    def _alone(self, room: Mapping[str, Array], i: int, inward: Tiles, outward: Tiles) -> Work:
        return Work(
            *_rows(room, i),
            Multiplier(inward, room["in_weights"][i], room["in_products"][i]),
            Multiplier(outward, room["out_weights"][i], room["out_products"][i]),
        )

    def _shared(self, room: Mapping[str, Array], inward: Tiles, outward: Tiles) -> Work:
        return Work(
            *_rows(room, 0),
            Product(self.workers, inward, room["in_weights"], room["in_products"]),
            Product(self.workers, outward, room["out_weights"], room["out_products"]),
        )


def _rows(room: Mapping[str, Array], i: int) -> tuple[Array, Array, Array, Array]:
    return room["x"][i], room["hidden"][i], room["other"][i], room["y"][i]


def _gate(gate: Array, up: Array) -> None:
    """Replace gate by gate * up / (1 + e^-gate); up is used as scratch."""
    up *= gate
    np.negative(gate, out=gate)
    np.exp(gate, out=gate)
    gate += 1
    np.divide(up, gate, out=gate)


def _multiply(product: Any, x: Array, rows: int, spans: list[Span], y: Array) -> None:
    if isinstance(product, Product):
        product(x, rows, spans, y)
        return
    for span in spans:
        product(x, rows, span, y)


def _tiles(sig: Signature) -> tuple[Tiles, Tiles]:
    return tiles_for(sig["D"], sig["F"]), tiles_for(sig["F"], sig["D"])


def _most(sig: Signature) -> int:
    return min(sig["T"] * (1 if sig["E"] == 1 else sig["R"]), MOST_ROWS)
