"""The kernels of the OpenCL engine, one primitive a file; their sources lie in `cl`."""

from __future__ import annotations

from clover_rt.backend import Kernel
from clover_rt_rocm.opencl.device import ClDevice
from clover_rt_rocm.opencl.kernel import ClKernel
from clover_rt_rocm.opencl.kernels.advance import Advance
from clover_rt_rocm.opencl.kernels.attend import Attend
from clover_rt_rocm.opencl.kernels.begin import Begin
from clover_rt_rocm.opencl.kernels.block_memory import BlockMemory
from clover_rt_rocm.opencl.kernels.block_scan import BlockScan
from clover_rt_rocm.opencl.kernels.causal_conv import CausalConv
from clover_rt_rocm.opencl.kernels.combine import Combine
from clover_rt_rocm.opencl.kernels.confidence_topk import ConfidenceTopk
from clover_rt_rocm.opencl.kernels.coreset import Coreset
from clover_rt_rocm.opencl.kernels.embed_rows import EmbedRows
from clover_rt_rocm.opencl.kernels.expert_gemm import ExpertGemm
from clover_rt_rocm.opencl.kernels.gated_norm import GatedNorm
from clover_rt_rocm.opencl.kernels.gdn_gates import GdnGates
from clover_rt_rocm.opencl.kernels.group_rows import GroupRows
from clover_rt_rocm.opencl.kernels.kv_append import KvAppend
from clover_rt_rocm.opencl.kernels.linear import Linear
from clover_rt_rocm.opencl.kernels.output_gate import OutputGate
from clover_rt_rocm.opencl.kernels.rms_norm import RmsNorm
from clover_rt_rocm.opencl.kernels.rope import Rope
from clover_rt_rocm.opencl.kernels.router_topk import RouterTopk

TYPES: dict[str, type[ClKernel]] = {
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


def make_kernels(device: ClDevice) -> dict[str, Kernel]:
    """Return one kernel of each primitive by name."""
    return {name: kind(device) for name, kind in TYPES.items()}
