"""block_scan: the gated delta rule over the rows of commit and verify segments.

    q, k, v = columns of qkv: G*K, G*K, H*V; key head h // (H/G) serves value head h
    q <- q / sqrt(sum q^2 + 1e-6) / sqrt(K)        k <- k / sqrt(sum k^2 + 1e-6)
    per value head:  S <- e^g S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q

    qkv   [T, 2*G*K + H*V]  rows after convolution and silu, not yet normalised
    g     [T, H] float32    log decay, <= 0
    beta  [T, H] float32    write strength
    S     [slots, H, K, V] float32
    tape_k [slots, Q, G*K], tape_v [slots, Q, H*V], tape_g, tape_beta [slots, Q, H] float32
    o     [T, H*V]
A commit advances S. A verify starts from S, leaves it alone, and writes its k, v, g and beta to
the tape. Preview rows of `o` are left as they were. e^g may underflow: the decay then is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.common import (
    PARAMS,
    Array,
    axes_of,
    edge,
    f64,
    given,
    left_alone,
    live_work,
    mixed_tables,
    random_rows,
    result,
    state,
    table,
    unit,
)
from clover_rt.spec import (
    Case,
    DType,
    Kind,
    Numerics,
    OpSpec,
    Signature,
    StepParams,
    Tier,
    Tolerance,
    Work,
)


def split_qkv(qkv: Array, heads: int, key: int, value: int) -> tuple[Array, Array, Array]:
    """Return q, k [T, G, K] and v [T, H, V] as views of the columns of qkv."""
    n, columns = qkv.shape
    width = (columns - heads * value) // 2
    q = qkv[:, :width].reshape(n, width // key, key)
    k = qkv[:, width : 2 * width].reshape(n, width // key, key)
    return q, k, qkv[:, 2 * width :].reshape(n, heads, value)


def delta_rows(memory: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
    """Advance memory [H, K, V] in place over unit rows q, k [n, H, K], v [n, H, V]; return o."""
    out = np.zeros(v.shape)
    for t in range(len(v)):
        memory *= np.exp(g[t])[:, None, None]
        read = np.einsum("hkv,hk->hv", memory, k[t])
        memory += k[t][:, :, None] * (beta[t][:, None] * (v[t] - read))[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", memory, q[t])
    return out


def reference(
    *,
    params: StepParams,
    qkv: Array,
    g: Array,
    beta: Array,
    S: Array,
    tape_k: Array,
    tape_v: Array,
    tape_g: Array,
    tape_beta: Array,
) -> dict[str, Array]:
    _, heads, key, value = S.shape
    o = left_alone(params.rows, heads * value)
    q, k, v = split_qkv(f64(qkv[: params.rows]), heads, key, value)
    each = heads // q.shape[1]
    q, k = np.repeat(unit(q), each, axis=1) / np.sqrt(key), np.repeat(unit(k), each, axis=1)
    for s in params.segments:
        if s.kind is Kind.PREVIEW:
            continue
        rows = slice(s.row0, s.row0 + s.rows)
        memory = f64(S[s.slot])
        out = delta_rows(memory, q[rows], k[rows], v[rows], f64(g[rows]), f64(beta[rows]))
        o[rows] = out.reshape(s.rows, heads * value)
        if s.kind is Kind.COMMIT:
            S[s.slot] = memory
            continue
        width = tape_k.shape[-1]
        tape_k[s.slot, : s.rows] = qkv[rows, width : 2 * width]
        tape_v[s.slot, : s.rows] = qkv[rows, 2 * width :]
        tape_g[s.slot, : s.rows] = g[rows]
        tape_beta[s.slot, : s.rows] = beta[rows]
    return {"o": o}


def random_scan(
    rng: np.random.Generator, total: int, axes: Mapping[str, int], equal_keys: bool = False
) -> dict[str, Array]:
    """Return random qkv, g, beta, S and tapes with domain-true ranges."""
    g, h, k, v = (axes[a] for a in "GHKV")
    slots, draft = axes["slots"], axes["Q"]
    qkv = random_rows(rng, total, 2 * g * k + h * v)
    if equal_keys:
        qkv[:, g * k : 2 * g * k] = qkv[:1, g * k : 2 * g * k]
    decay = -np.exp(rng.uniform(-6, 3, (total, h))).astype(np.float32)
    if total > 4:
        decay[2] = -200
    return {
        "qkv": qkv,
        "g": decay,
        "beta": rng.uniform(0.01, 0.99, (total, h)).astype(np.float32),
        "S": random_rows(rng, slots, h, k, v),
        "tape_k": random_rows(rng, slots, draft, g * k),
        "tape_v": random_rows(rng, slots, draft, h * v),
        "tape_g": -np.abs(random_rows(rng, slots, draft, h)),
        "tape_beta": rng.uniform(0.01, 0.99, (slots, draft, h)).astype(np.float32),
    }


def cases() -> Iterator[Case]:
    yield from _kept_keys()
    for g, h, k, v in ((2, 4, 16, 24), (1, 2, 128, 128)):
        widths = (1, 2, 3, 7, 8, 31, 32) if k < 64 else (1, 32)
        extra = [
            (f"commit{n}", [(Kind.COMMIT, 1, n, 5)]) for n in ((33, 63, 64, 65) if k < 64 else ())
        ]
        tables = [(n, c, s) for n, c, s in mixed_tables(widths)]
        for equal in (False, True):
            for name, kinds, segments in [*tables, *((n, tables[0][1], s) for n, s in extra)]:
                total = max(1, sum(n for _, _, n, _ in segments))
                axes = axes_of(T=total, G=g, H=h, K=k, V=v, slots=3, Q=32)

                def build(
                    rng: np.random.Generator,
                    segments: list[Any] = segments,
                    axes: Mapping[str, int] = axes,
                    equal: bool = equal,
                ) -> Any:
                    operands = random_scan(rng, axes["T"], axes, equal)
                    return {"params": table(segments), **operands}

                yield Case(
                    f"block_scan/H={h},K={k},V={v}/{name}" + ("/equal-keys" if equal else ""),
                    "block_scan",
                    axes,
                    build,
                    table=kinds,
                    classes=("K-09",) if name == "empty" else ("K-24", "K-25", "K-26"),
                )


def _kept_keys() -> Iterator[Case]:
    """Equal keys that are written at nearly full strength and hardly decay.

    A chunked form that inverts by powers of its matrix blows up here.
    """
    for n in (32, 64):
        axes = axes_of(T=n, G=2, H=4, K=16, V=24, slots=3, Q=32)

        def build(rng: np.random.Generator, axes: Mapping[str, int] = axes, n: int = n) -> Any:
            operands = random_scan(rng, n, axes, equal_keys=True)
            operands["beta"][:] = 1 - rng.uniform(1e-4, 1e-2, operands["beta"].shape)
            operands["g"][:] = -rng.uniform(1e-5, 1e-3, operands["g"].shape)
            return {"params": table([(Kind.COMMIT, 1, n, 5)]), **operands}

        name = f"block_scan/equal-keys-kept/commit{n}"
        yield Case(name, "block_scan", axes, build, classes=("K-25",))


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    h, k, v, g = sig["H"], sig["K"], sig["V"], sig["G"]
    return live_work(8 * h * k * v, 4 * (2 * g * k + 2 * h * v + 2 * h), 8 * h * k * v, live["T"])


SPEC = OpSpec(
    name="block_scan",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="Yang et al. 2024, Gated Delta Networks, equation 10",
    operands=(
        PARAMS,
        edge("qkv", ("T", "2*G*K+H*V"), "q, k, v after convolution"),
        given("g", DType.F32, ("T", "H"), "log decay"),
        given("beta", DType.F32, ("T", "H"), "write strength"),
        state("S", DType.F32, ("slots", "H", "K", "V"), "memory of a slot"),
        state("tape_k", DType.F32, ("slots", "Q", "G*K"), "k of the last verify"),
        state("tape_v", DType.F32, ("slots", "Q", "H*V"), "v of the last verify"),
        state("tape_g", DType.F32, ("slots", "Q", "H"), "log decay of the last verify"),
        state("tape_beta", DType.F32, ("slots", "Q", "H"), "write strength of the last verify"),
        result("o", ("T", "H*V"), "memory read by each causal row"),
    ),
    writes=("S", "tape_k", "tape_v", "tape_g", "tape_beta"),
    reference=reference,
    cases=cases,
    work=work,
    tolerance={
        Numerics.F32: Tolerance(
            2e-5, 2e-5, "float32 recurrence or chunk over 65 rows: 5e-6 seen, 4x margin"
        ),
        Numerics.BF16: Tolerance(2e-2, 2e-2, "q, k, v rounded to 8 bits, state in float32"),
    },
)
