"""block_memory: the mixer of a preview: softmax over the block and one history slot.

    q^, k^ = unit rows of q and k (eps 1e-6 inside the root); for value head h, B = rows:
    s[t, s'] = (q^_t . k^_s') logit_scale_h                      for every s' in the block
    s[t, B]  = history_bias_h + history_c_h ln(B / 32)           the history slot
    a = softmax over the B + 1 slots
    o_t = sum_s' a[t, s'] v_s' + a[t, B] e^{g_t} S^T (q^_t / sqrt(K))

    qkv  [T, 2*G*K + H*V]   rows after convolution and silu (see block_scan)
    g    [T, H] float32     this row's own log decay, not a cumulative one
    S    [slots, H, K, V]   memory after the slot's commit of this pass, if there is one; read only
    logit_scale, history_bias, history_c [H]
    o    [T, H*V]           preview rows are written, the others left alone
The block logits are not scaled by 1/sqrt(K); 32 is a constant, whatever the block size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.block_scan import random_scan, split_qkv
from clover_rt.ops.common import (
    PARAMS,
    Array,
    axes_of,
    edge,
    f64,
    given,
    live_work,
    mixed_tables,
    random_rows,
    table,
    unit,
    vector,
    weight,
)
from clover_rt.spec import (
    Case,
    DType,
    Kind,
    Numerics,
    Operand,
    OpSpec,
    Role,
    Signature,
    StepParams,
    TableClass,
    Tier,
    Tolerance,
    Weight,
    Work,
)


def reference(
    *,
    params: StepParams,
    qkv: Array,
    g: Array,
    S: Array,
    logit_scale: Weight,
    history_bias: Weight,
    history_c: Weight,
    o: Array,
) -> dict[str, Array]:
    _, heads, key, value = S.shape
    q, k, v = split_qkv(f64(qkv[: params.rows]), heads, key, value)
    each = heads // q.shape[1]
    q, k = np.repeat(unit(q), each, axis=1), np.repeat(unit(k), each, axis=1)
    scale, bias, slope = f64(logit_scale), f64(history_bias), f64(history_c)
    for s in params.segments:
        if s.kind is not Kind.PREVIEW or s.rows == 0:
            continue
        rows = slice(s.row0, s.row0 + s.rows)
        logits = np.empty((heads, s.rows, s.rows + 1))
        logits[..., :-1] = np.einsum("thk,shk->hts", q[rows], k[rows]) * scale[:, None, None]
        logits[..., -1] = (bias + slope * np.log(s.rows / 32))[:, None]
        share = np.exp(logits - logits.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        history = np.einsum("hkv,thk->thv", f64(S[s.slot]), q[rows] / np.sqrt(key))
        history *= (share[..., -1].T * np.exp(f64(g[rows])))[:, :, None]
        block = np.einsum("hts,shv->thv", share[..., :-1], v[rows])
        o[rows] = (block + history).reshape(s.rows, heads * value)
    return {}


def cases() -> Iterator[Case]:
    for g, h, k, v in ((2, 4, 16, 24), (1, 2, 128, 128)):
        for name, kinds, segments in mixed_tables((1, 2, 8, 31, 32, 33)):
            if not kinds.has_preview:
                continue
            total = max(1, sum(n for _, _, n, _ in segments))
            axes = axes_of(T=total, G=g, H=h, K=k, V=v, slots=3, Q=1)

            def build(
                rng: np.random.Generator,
                segments: list[Any] = segments,
                axes: Mapping[str, int] = axes,
            ) -> Any:
                heads = axes["H"]
                scan = random_scan(rng, axes["T"], axes)
                return {
                    "params": table(segments),
                    **{name: scan[name] for name in ("qkv", "g", "S")},
                    "logit_scale": vector(rng.uniform(2, 8, heads)),
                    "history_bias": vector(rng.uniform(0, 3, heads)),
                    "history_c": vector(rng.uniform(-2, 1, heads)),
                    "o": random_rows(rng, axes["T"], heads * axes["V"]),
                }

            yield Case(
                f"block_memory/H={h},K={k},V={v}/{name}",
                "block_memory",
                axes,
                build,
                table=TableClass.MIXED if name == "empty" else kinds,
                classes=("K-09",) if name == "empty" else ("K-16", "K-17", "K-35"),
            )


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    h, k, v, g = sig["H"], sig["K"], sig["V"], sig["G"]
    rows = live["T"]
    flops = 2 * h * (k * v + (k + v) * min(rows, 32))
    return live_work(flops, 4 * (2 * g * k + 2 * h * v), 4 * h * k * v, rows)


SPEC = OpSpec(
    name="block_memory",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="the block operator of Clover's preview",
    operands=(
        PARAMS,
        edge("qkv", ("T", "2*G*K+H*V"), "q, k, v after convolution"),
        given("g", DType.F32, ("T", "H"), "log decay"),
        given("S", DType.F32, ("slots", "H", "K", "V"), "memory of a slot"),
        weight("logit_scale", ("H",), "scale of the block logits"),
        weight("history_bias", ("H",), "logit of the history slot"),
        weight("history_c", ("H",), "its slope in ln(B / 32)"),
        Operand("o", Role.INOUT, DType.EDGE, ("T", "H*V"), "rows of block_scan, completed"),
    ),
    writes=("o",),
    reference=reference,
    cases=cases,
    work=work,
    tolerance={
        Numerics.F32: Tolerance(1e-5, 1e-5, "logits to 8 in float32: e^x errs by 1e-6, 8x margin"),
        Numerics.BF16: Tolerance(3e-2, 3e-2, "logits to 8 from 8-bit operands: 3 % in a share"),
    },
)
