"""Kernels generated at run time for the processor at hand."""

from __future__ import annotations

from clover_rt_cpu.jit.attend import Attend
from clover_rt_cpu.jit.conv import CausalConv
from clover_rt_cpu.jit.experts import ExpertGemm
from clover_rt_cpu.jit.kernel import Jit, JitKernel
from clover_rt_cpu.jit.linear import Linear
from clover_rt_cpu.jit.memory import BlockMemory
from clover_rt_cpu.jit.norms import GatedNorm, GdnGates, OutputGate, RmsNorm
from clover_rt_cpu.jit.routing import Coreset, GroupRows, RouterTopk
from clover_rt_cpu.jit.rows import Begin, Combine, EmbedRows, KvAppend, Rope
from clover_rt_cpu.jit.scan import Advance, BlockScan
from clover_rt_cpu.jit.topk import ConfidenceTopk

TYPES: dict[str, type[JitKernel]] = {
    "advance": Advance,
    "attend": Attend,
    "begin": Begin,
    "block_memory": BlockMemory,
    "block_scan": BlockScan,
    "causal_conv": CausalConv,
    "combine": Combine,
    "confidence_topk": ConfidenceTopk,
    "coreset": Coreset,
    "embed_rows": EmbedRows,
    "expert_gemm": ExpertGemm,
    "gated_norm": GatedNorm,
    "gdn_gates": GdnGates,
    "group_rows": GroupRows,
    "kv_append": KvAppend,
    "linear": Linear,
    "output_gate": OutputGate,
    "rms_norm": RmsNorm,
    "rope": Rope,
    "router_topk": RouterTopk,
}


def jit_kernels(jit: Jit) -> dict[str, JitKernel]:
    """Return one generated kernel of each operation that has one, by name."""
    return {name: kind(jit) for name, kind in TYPES.items()}
