"""The kernels of the vulkan backend, one op a file; their shaders lie in `shaders`."""

from __future__ import annotations

from clover_rt.backend import Kernel
from clover_rt_vulkan.device import VulkanDevice
from clover_rt_vulkan.kernel import VulkanKernel
from clover_rt_vulkan.kernels.advance import Advance
from clover_rt_vulkan.kernels.attend import Attend
from clover_rt_vulkan.kernels.attention import Attention
from clover_rt_vulkan.kernels.begin import Begin
from clover_rt_vulkan.kernels.block_memory import BlockMemory
from clover_rt_vulkan.kernels.block_scan import BlockScan
from clover_rt_vulkan.kernels.causal_conv import CausalConv
from clover_rt_vulkan.kernels.combine import Combine
from clover_rt_vulkan.kernels.confidence_topk import ConfidenceTopk
from clover_rt_vulkan.kernels.coreset import Coreset
from clover_rt_vulkan.kernels.embed_rows import EmbedRows
from clover_rt_vulkan.kernels.expert_gemm import ExpertGemm
from clover_rt_vulkan.kernels.gated_norm import GatedNorm
from clover_rt_vulkan.kernels.gdn import Gdn
from clover_rt_vulkan.kernels.gdn_gates import GdnGates
from clover_rt_vulkan.kernels.group_rows import GroupRows
from clover_rt_vulkan.kernels.kv_append import KvAppend
from clover_rt_vulkan.kernels.linear import Linear
from clover_rt_vulkan.kernels.moe import Moe
from clover_rt_vulkan.kernels.output_gate import OutputGate
from clover_rt_vulkan.kernels.rms_norm import RmsNorm
from clover_rt_vulkan.kernels.rope import Rope
from clover_rt_vulkan.kernels.router_topk import RouterTopk

TYPES: dict[str, type[VulkanKernel]] = {
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
    "gdn": Gdn,
    "attention": Attention,
    "moe": Moe,
}


def make_kernels(device: VulkanDevice) -> dict[str, Kernel]:
    """Return one kernel of each op by name."""
    return {name: kind(device) for name, kind in TYPES.items()}
