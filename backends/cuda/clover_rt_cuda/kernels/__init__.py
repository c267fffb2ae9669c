"""The kernels: pure Triton, one op a file, named after it.

Nothing here knows a vendor: what a card needs of its own is in `device.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clover_rt_cuda.kernels.advance import Advance
from clover_rt_cuda.kernels.attend import Attend
from clover_rt_cuda.kernels.attention import Attention
from clover_rt_cuda.kernels.begin import Begin
from clover_rt_cuda.kernels.block_memory import BlockMemory
from clover_rt_cuda.kernels.block_scan import BlockScan
from clover_rt_cuda.kernels.causal_conv import CausalConv
from clover_rt_cuda.kernels.combine import Combine
from clover_rt_cuda.kernels.confidence_topk import ConfidenceTopk
from clover_rt_cuda.kernels.coreset import Coreset
from clover_rt_cuda.kernels.embed_rows import EmbedRows
from clover_rt_cuda.kernels.expert_gemm import ExpertGemm
from clover_rt_cuda.kernels.gated_norm import GatedNorm
from clover_rt_cuda.kernels.gdn import Gdn
from clover_rt_cuda.kernels.gdn_gates import GdnGates
from clover_rt_cuda.kernels.group_rows import GroupRows
from clover_rt_cuda.kernels.kv_append import KvAppend
from clover_rt_cuda.kernels.linear import Linear
from clover_rt_cuda.kernels.moe import Moe
from clover_rt_cuda.kernels.output_gate import OutputGate
from clover_rt_cuda.kernels.rms_norm import RmsNorm
from clover_rt_cuda.kernels.rope import Rope
from clover_rt_cuda.kernels.router_topk import RouterTopk

if TYPE_CHECKING:
    from clover_rt.backend import Kernel
    from clover_rt_cuda.device import CudaDevice

KERNELS: Mapping[str, type[Kernel]] = {
    "begin": Begin,
    "embed_rows": EmbedRows,
    "rms_norm": RmsNorm,
    "linear": Linear,
    "gdn_gates": GdnGates,
    "causal_conv": CausalConv,
    "block_scan": BlockScan,
    "block_memory": BlockMemory,
    "gated_norm": GatedNorm,
    "rope": Rope,
    "kv_append": KvAppend,
    "attend": Attend,
    "output_gate": OutputGate,
    "coreset": Coreset,
    "router_topk": RouterTopk,
    "group_rows": GroupRows,
    "expert_gemm": ExpertGemm,
    "combine": Combine,
    "confidence_topk": ConfidenceTopk,
    "advance": Advance,
    "gdn": Gdn,
    "attention": Attention,
    "moe": Moe,
}


def make_kernels(device: CudaDevice) -> dict[str, Kernel]:
    """Return every kernel for a device, by the name of its op."""
    return {name: kind(device) for name, kind in KERNELS.items()}
