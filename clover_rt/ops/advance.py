"""advance: replay the first n rows of a slot's tape into its ring and memory.

    for each (slot, n) of StepParams.advances:
        ring <- last J - 1 rows of [ring | tape_u[:n]]
        S    <- the gated delta rule over tape_k, tape_v, tape_g, tape_beta[:n] (see block_scan)

    ring    [slots, J-1, C]        S [slots, H, K, V] float32
    tape_u  [slots, Q, C], tape_k [slots, Q, G*K], tape_v [slots, Q, H*V],
    tape_g, tape_beta [slots, Q, H] float32
Afterwards ring and S equal a causal commit of those n rows (bitwise on a row-invariant device).
n = 0 changes nothing. No weight is read. It is the last primitive of its kind as well as a layer
op: it has no decomposition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clover_rt.ops.block_scan import SPEC as SCAN
from clover_rt.ops.block_scan import delta_rows, random_scan
from clover_rt.ops.common import PARAMS, Array, axes_of, f64, given, random_rows, state, table, unit
from clover_rt.spec import Case, DType, OpSpec, Signature, StepParams, Tier, Work


def reference(
    *,
    params: StepParams,
    ring: Array,
    S: Array,
    tape_u: Array,
    tape_k: Array,
    tape_v: Array,
    tape_g: Array,
    tape_beta: Array,
) -> dict[str, Array]:
    _, heads, key, value = S.shape
    for slot, n in params.advances:
        if n == 0:
            continue
        ring[slot] = np.concatenate([ring[slot], tape_u[slot, :n]])[n:]
        k = unit(f64(tape_k[slot, :n]).reshape(n, -1, key))
        k = np.repeat(k, heads // k.shape[1], axis=1)
        v = f64(tape_v[slot, :n]).reshape(n, heads, value)
        memory = f64(S[slot])
        delta_rows(memory, k, k, v, f64(tape_g[slot, :n]), f64(tape_beta[slot, :n]))
        S[slot] = memory
    return {}


def cases() -> Iterator[Case]:
    axes = axes_of(G=2, H=4, K=16, V=24, C=160, J=4, slots=3, Q=16)
    for name, advances in (
        ("none", []),
        ("zero", [(1, 0)]),
        ("one", [(1, 1)]),
        ("two", [(0, 2)]),
        ("whole", [(2, 16)]),
        ("several", [(2, 5), (0, 3), (1, 0)]),
    ):

        def build(rng: np.random.Generator, advances: list[Any] = advances) -> Any:
            operands = random_scan(rng, 1, axes)
            for unused in ("qkv", "g", "beta"):
                del operands[unused]
            ring, tape_u = random_rows(rng, 3, 3, 160), random_rows(rng, 3, 16, 160)
            params = table([], advances=advances)
            return {"params": params, "ring": ring, "tape_u": tape_u, **operands}

        classes = ("K-09",) if name == "none" else ("K-26",)
        yield Case(f"advance/{name}", "advance", axes, build, classes=classes)


def work(sig: Signature, live: Mapping[str, int]) -> Work:
    h, k, v = sig["H"], sig["K"], sig["V"]
    rows = live.get("advance_rows", 0)
    return Work(6 * h * k * v * rows, 8.0 * h * k * v * live.get("advances", 0))


SPEC = OpSpec(
    name="advance",
    tier=Tier.PRIMITIVE,
    doc=__doc__ or "",
    source="replay of block_scan's recurrence",
    operands=(
        PARAMS,
        state("ring", DType.F32, ("slots", "J-1", "C"), "last raw rows of a slot"),
        state("S", DType.F32, ("slots", "H", "K", "V"), "memory of a slot"),
        given("tape_u", DType.F32, ("slots", "Q", "C"), "raw rows of the last verify"),
        given("tape_k", DType.F32, ("slots", "Q", "G*K"), "k of the last verify"),
        given("tape_v", DType.F32, ("slots", "Q", "H*V"), "v of the last verify"),
        given("tape_g", DType.F32, ("slots", "Q", "H"), "log decay of the last verify"),
        given("tape_beta", DType.F32, ("slots", "Q", "H"), "write strength of the last verify"),
    ),
    writes=("ring", "S"),
    reference=reference,
    cases=cases,
    work=work,
    tolerance=SCAN.tolerance,
)
