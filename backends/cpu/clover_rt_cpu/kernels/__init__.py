"""The kernels of the cpu backend, one primitive a file."""

from __future__ import annotations

from clover_rt.backend import Kernel
from clover_rt_cpu.kernels.advance import Advance
from clover_rt_cpu.kernels.attend import Attend
from clover_rt_cpu.kernels.begin import Begin
from clover_rt_cpu.kernels.block_memory import BlockMemory
from clover_rt_cpu.kernels.block_scan import BlockScan
from clover_rt_cpu.kernels.causal_conv import CausalConv
from clover_rt_cpu.kernels.combine import Combine
from clover_rt_cpu.kernels.confidence_topk import ConfidenceTopk
from clover_rt_cpu.kernels.coreset import Coreset
from clover_rt_cpu.kernels.embed_rows import EmbedRows
from clover_rt_cpu.kernels.expert_gemm import ExpertGemm
from clover_rt_cpu.kernels.gated_norm import GatedNorm
from clover_rt_cpu.kernels.gdn_gates import GdnGates
from clover_rt_cpu.kernels.group_rows import GroupRows
from clover_rt_cpu.kernels.kv_append import KvAppend
from clover_rt_cpu.kernels.linear import Linear
from clover_rt_cpu.kernels.output_gate import OutputGate
from clover_rt_cpu.kernels.rms_norm import RmsNorm
from clover_rt_cpu.kernels.rope import Rope
from clover_rt_cpu.kernels.router_topk import RouterTopk
from clover_rt_cpu.workers import Workers

TYPES: dict[str, type] = {
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


def make_kernels(workers: Workers) -> dict[str, Kernel]:
    """Return one kernel of each primitive by name; they share the workers."""
    return {name: kind(workers) for name, kind in TYPES.items()}
