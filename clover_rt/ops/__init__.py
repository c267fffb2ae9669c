"""Every operation's contract, one module each.

Layer ops (embed, gdn, attention, moe, pick) have a decomposition into primitives; a device runs
either. The graph is written in layer ops, `begin` and `advance`.
"""

from clover_rt.ops import (
    advance,
    attend,
    attention,
    begin,
    block_memory,
    block_scan,
    causal_conv,
    combine,
    confidence_topk,
    coreset,
    embed,
    embed_rows,
    expert_gemm,
    gated_norm,
    gdn,
    gdn_gates,
    group_rows,
    kv_append,
    linear,
    moe,
    output_gate,
    pick,
    rms_norm,
    rope,
    router_topk,
)
from clover_rt.spec import OpSpec

_MODULES = (
    begin,
    embed,
    gdn,
    attention,
    moe,
    pick,
    advance,
    embed_rows,
    rms_norm,
    linear,
    gdn_gates,
    causal_conv,
    block_scan,
    block_memory,
    gated_norm,
    rope,
    kv_append,
    attend,
    output_gate,
    coreset,
    router_topk,
    group_rows,
    expert_gemm,
    combine,
    confidence_topk,
)
OPS: dict[str, OpSpec] = {module.SPEC.name: module.SPEC for module in _MODULES}
HOT = ("expert_gemm", "block_scan", "confidence_topk")
