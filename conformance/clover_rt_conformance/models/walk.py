"""The float64 reference of a whole model: its graph, walked node by node by the references."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from clover_rt.graph import Graph, ValueKind, flatten
from clover_rt.ops import OPS
from clover_rt.ops.derived import Round, run_nodes
from clover_rt.spec import DType, Pass, StepLayout, StepParams

INTEGERS = {DType.I32: np.int32, DType.U32: np.uint32, DType.U8: np.uint8}


class Walk:
    """A model with its state, in float64.

    kv     numpy name of the type that the KV cache keeps; None: float64 as well
    round  applied to every floating-point edge; None: nothing is rounded
    """

    def __init__(
        self,
        graph: Graph,
        layout: StepLayout,
        kv: str | None = None,
        round_edge: Round | None = None,
    ) -> None:
        self.graph, self.layout, self.round = graph, layout, round_edge
        kept = np.dtype(ml_dtypes.bfloat16 if kv == "bfloat16" else kv or np.float64)
        self.values: dict[str, Any] = {}
        for name, value in graph.values.items():
            if value.kind is ValueKind.STATE:
                dtype = kept if value.dtype is DType.KV else INTEGERS.get(value.dtype, np.float64)
                self.values[name] = np.zeros(value.shape, dtype)
            elif value.kind is ValueKind.WEIGHT:
                assert value.weight is not None
                self.values[name] = value.weight.whole()
            elif value.kind is ValueKind.CONSTANT:
                self.values[name] = value.data

    def run(self, work: Pass) -> dict[str, Any]:
        """Run a pass; return every value by name, each layer op's inputs as it saw them."""
        params = StepParams(self.layout)
        params.write(work)
        self.values["params"] = params
        nodes = [*(self.graph.advances if work.advances else ()), *self.graph.nodes]
        with np.errstate(all="ignore"):
            for node in nodes:
                run_nodes(flatten(node, work.table), self.values, OPS, self.round)
        return self.values

    def reset_slot(self, slot: int) -> None:
        """Set ring, memory and counts of a slot to zero."""
        for name, array in self.values.items():
            if name.rsplit(".", 1)[-1] in ("ring", "S", "counts"):
                array[slot] = 0
