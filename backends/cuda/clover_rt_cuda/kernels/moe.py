"""moe: router, routes, hidden rows of the experts and of the shared one, down, and their sum.

Few rows (a capacity of up to 4): four launches; the last one adds up a row's experts in slot order
as it multiplies. Up to 64 rows: five; the program of the routes that ends last sorts the pairs by
expert, so that they need no launch of their own. More rows: six, with group_rows.
The coreset of a block is found by the program of each of its rows. Products are those of linear and
expert_gemm; the norm in front of them is made as tiles are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Numerics, Signature
from clover_rt_cuda.kernel import (
    DeviceWeight,
    TritonKernel,
    Words,
    block,
    cdiv,
    dot_type,
    numerics_of,
    room,
    room_bytes,
    sequence,
    table_of,
    views,
)
from clover_rt_cuda.kernels import coreset
from clover_rt_cuda.kernels.combine import combine_kernel
from clover_rt_cuda.kernels.coreset import block_mass, kept_of, mass_tile
from clover_rt_cuda.kernels.expert_gemm import (
    down_tile,
    hidden_line,
    hidden_tile,
    most_tiles,
    pair_tile,
    pairs_of_tile,
)
from clover_rt_cuda.kernels.group_rows import count_pairs, group_step, place_pairs
from clover_rt_cuda.kernels.group_rows import pair_tile as grouping_tile
from clover_rt_cuda.kernels.linear import FEW_ROWS, row_tile
from clover_rt_cuda.kernels.project import Part, project_step
from clover_rt_cuda.kernels.router_topk import NOT_ALLOWED, choose, rank_of
from clover_rt_cuda.kernels.tools import PREVIEW, ROWS, SEGMENT, row_product, sigmoid
from clover_rt_cuda.launch import CudaStep

MOST_GROUPED = 64
"""Rows whose pairs the last program of the routes sorts alone."""
ROUTED = ("expert_gate", "expert_up", "expert_down")
SHARED = ("shared_gate", "shared_up", "shared_down")


@triton.jit
def route_kernel(
    table, segments, row_segment, logits, ids, weights, order, offsets, arrived, E, top_p,
    R: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr, BT: tl.constexpr, BF: tl.constexpr,
    CORESET: tl.constexpr, BP: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Route one row; order: None, or the last program sorts all pairs, counted by `arrived`."""
    row = tl.program_id(0) + tl.arange(0, 1)
    count = tl.load(table + ROWS)
    if tl.program_id(0) < count:
        e = tl.arange(0, BE)
        ok = (row >= 0)[:, None] & (e < E)[None, :]
        x = tl.load(logits + row.to(tl.int64)[:, None] * E + e[None, :], mask=ok, other=0)
        rank = tl.where(ok, rank_of(x), NOT_ALLOWED)
        if CORESET:
            own = tl.load(table + row_segment + tl.program_id(0))
            entry = table + segments + own * SEGMENT
            if tl.load(entry) == PREVIEW:
                first, rows = tl.load(entry + 2), tl.load(entry + 3)
                mass = block_mass(logits, first, rows, E, R, BT, BE)
                may = kept_of(mass, E, top_p, BE, BF)
                rank = tl.where((may != 0)[None, :], rank, NOT_ALLOWED)
        choose(x, rank, ids, weights, row, row >= 0, R, BR, 1, BE)
    if order is not None:
        # what the threads of this program wrote is there before it says that it is done
        tl.debug_barrier()
        before = tl.atomic_add(arrived, 1, sem="acq_rel")
        if before == tl.num_programs(0) - 1:
            tl.store(arrived, 0)
            for p in range(0, count * R, BP):
                place_pairs(ids, order, count * R, E, p, BP, BQ)
            for p in range(0, E + 1, BP):
                count_pairs(ids, offsets, count * R, E, p, BP, BQ)


@triton.jit
def moe_hidden_row(
    table, ids, h, norm, eps, hidden, shared_hidden,
    gate, gate_scale, gate_zero, up, up_scale, up_zero,
    s_gate, s_gate_scale, s_gate_zero, s_up, s_up_scale, s_up_zero, E, R, D, F, Fs, pairs,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, UP: tl.constexpr, UP_GROUP: tl.constexpr,
    SF: tl.constexpr, SG: tl.constexpr, SUF: tl.constexpr, SUG: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Hidden numbers of one routed pair, or behind those of one row of the shared expert."""
    rows = tl.load(table + ROWS)
    tile, pair = tl.program_id(0), tl.program_id(1)
    if pair < pairs:
        if (pair < rows * R) & (tile * BN < F):
            expert = tl.load(ids + pair)
            if expert >= 0:
                hidden_line(
                    h, (pair // R).to(tl.int64), norm, eps, hidden, pair, expert, tile,
                    gate, gate_scale, gate_zero, up, up_scale, up_zero, D, F,
                    FORMAT, GROUP, UP, UP_GROUP, BN, BK,
                )  # fmt: skip
    else:
        row = pair - pairs
        if (row < rows) & (tile * BN < Fs):
            hidden_line(
                h, row.to(tl.int64), norm, eps, shared_hidden, row, row * 0, tile,
                s_gate, s_gate_scale, s_gate_zero, s_up, s_up_scale, s_up_zero, D, Fs,
                SF, SG, SUF, SUG, BN, BK,
            )  # fmt: skip


@triton.jit
def moe_down_row(
    table, ids, weights, shared_scale, h, hidden, shared_hidden, y,
    down, scale, zero, s_down, s_scale, s_zero, R, D, F, Fs,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, SF: tl.constexpr, SG: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, SBK: tl.constexpr,
):  # fmt: skip
    """BN columns of one row: shared expert, routed ones in slot order, residual."""
    row = tl.program_id(1)
    if row >= tl.load(table + ROWS):
        return
    d = tl.program_id(0) * BN + tl.arange(0, BN)
    ok = d < D
    total, _ = row_product(
        shared_hidden, row.to(tl.int64), None, s_down, s_scale, s_zero, d.to(tl.int64), ok, Fs,
        SF, SG, BN, SBK,
    )  # fmt: skip
    total *= sigmoid(tl.load(shared_scale + row))
    for r in range(0, R):
        pair = row * R + r
        expert = tl.load(ids + pair)
        if expert >= 0:
            base = expert.to(tl.int64) * D + d
            part, _ = row_product(
                hidden, pair.to(tl.int64), None, down, scale, zero, base, ok, F,
                FORMAT, GROUP, BN, BK,
            )  # fmt: skip
            total += tl.load(weights + pair) * part
    place = row.to(tl.int64) * D + d
    tl.store(y + place, tl.load(h + place, mask=ok, other=0) + total, mask=ok)


@triton.jit
def moe_hidden_rows(
    table, order, offsets, h, norm, eps, hidden, shared_hidden,
    gate, gate_scale, gate_zero, up, up_scale, up_zero,
    s_gate, s_gate_scale, s_gate_zero, s_up, s_up_scale, s_up_zero, E, R, D, F, Fs, tiles,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, UP: tl.constexpr, UP_GROUP: tl.constexpr,
    SF: tl.constexpr, SG: tl.constexpr, SUF: tl.constexpr, SUG: tl.constexpr,
    TYPE: tl.constexpr, BE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Hidden numbers of a tile of routed pairs, or behind those of rows of the shared expert."""
    rows = tl.load(table + ROWS)
    tile, index = tl.program_id(0), tl.program_id(1)
    if index < tiles:
        expert, pair, ok = pairs_of_tile(order, offsets, rows, index, E, BE, BP)
        if (tl.max(ok.to(tl.int32), 0) != 0) & (tile * BN < F):
            hidden_tile(
                h, (pair // R).to(tl.int64), ok, norm, eps, hidden, pair, expert, tile,
                gate, gate_scale, gate_zero, up, up_scale, up_zero, D, F,
                FORMAT, GROUP, UP, UP_GROUP, TYPE, BP, BN, BK,
            )  # fmt: skip
    elif ((index - tiles) * BP < rows) & (tile * BN < Fs):
        row = (index - tiles) * BP + tl.arange(0, BP)
        hidden_tile(
            h, row.to(tl.int64), row < rows, norm, eps, shared_hidden, row, index * 0, tile,
            s_gate, s_gate_scale, s_gate_zero, s_up, s_up_scale, s_up_zero, D, Fs,
            SF, SG, SUF, SUG, TYPE, BP, BN, BK,
        )  # fmt: skip


@triton.jit
def moe_down_rows(
    table, order, offsets, hidden, shared_hidden, y, shared,
    down, scale, zero, s_down, s_scale, s_zero, E, D, F, Fs, tiles,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, SF: tl.constexpr, SG: tl.constexpr,
    TYPE: tl.constexpr, BE: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.load(table + ROWS)
    tile, index = tl.program_id(0), tl.program_id(1)
    if index < tiles:
        expert, pair, ok = pairs_of_tile(order, offsets, rows, index, E, BE, BP)
        if tl.max(ok.to(tl.int32), 0) != 0:
            down_tile(
                hidden, pair, ok, y, expert, tile, down, scale, zero, D, F,
                FORMAT, GROUP, TYPE, BP, BN, BK,
            )  # fmt: skip
    elif (index - tiles) * BP < rows:
        row = (index - tiles) * BP + tl.arange(0, BP)
        down_tile(
            shared_hidden, row, row < rows, shared, index * 0, tile, s_down, s_scale, s_zero,
            D, Fs, SF, SG, TYPE, BP, BN, BK,
        )  # fmt: skip


class Moe(TritonKernel):
    """The second half of a layer."""

    def numerics(self, sig: Signature) -> Numerics:
        return numerics_of(sig)

    def supports(self, sig: Signature) -> str:
        if sig["E"] > coreset.MOST:
            return f"E={sig['E']} exceeds {coreset.MOST}, the experts that one program ranks"
        return super().supports(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        names = ("router", "shared_scale", *ROUTED, *SHARED)
        out: dict[str, Any] = {name: self.upload(weights[name]) for name in names}
        out["post_norm"] = self.vector(weights["post_norm"], 1.0)
        return out

    def scratch(self, sig: Signature) -> int:
        return room_bytes(*_counts(sig))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table, (h, y) = table_of(operands), views(operands, "h", "y")
        places = room(scratch, *_counts(sig))
        logits, scale, weights, hidden, shared_hidden, parts, shared, *index = places
        ids, order, offsets = (part.view(torch.int32) for part in index)
        norm = prepared["post_norm"]
        router = (
            Part(prepared["router"], logits, sig["E"]),
            Part(prepared["shared_scale"], scale, 1),
        )
        few = sig["T"] <= FEW_ROWS
        sorts = not few and sig["T"] <= MOST_GROUPED
        grouped = (order, offsets) if sorts else (None, None)
        steps = [
            project_step(self, sig, table, h, norm, router),
            self._route(sig, table, logits, ids, weights, *grouped),
        ]
        gates = [prepared[name] for name in (*ROUTED[:2], *SHARED[:2])]
        downs = [prepared[ROUTED[2]], prepared[SHARED[2]]]
        first = _formats(gates, ("FORMAT", "GROUP", "UP", "UP_GROUP", "SF", "SG", "SUF", "SUG"))
        second = _formats(downs, ("FORMAT", "GROUP", "SF", "SG"))
        inward = [array for weight in gates for array in weight.arrays]
        outward = [array for weight in downs for array in weight.arrays]
        eps = float(sig.attr("eps"))
        e, r, d, f, fs = (sig[a] for a in ("E", "R", "D", "F", "Fs"))
        pairs = sig["T"] * r
        if few:
            in_tile, out_tile = (self.tile("row", sig, row_tile(k)) for k in (d, f))
            steps += [
                self.launcher(
                    sig, moe_hidden_row, (cdiv(max(f, fs), in_tile["BN"]), pairs + sig["T"]),
                    table, ids, h, norm, eps, hidden, shared_hidden, *inward,
                    e, r, d, f, fs, pairs, **first, **in_tile,
                ),
                self.launcher(
                    sig, moe_down_row, (cdiv(d, out_tile["BN"]), sig["T"]),
                    table, ids, weights, scale, h, hidden, shared_hidden, y, *outward,
                    r, d, f, fs, **second, **out_tile, SBK=row_tile(fs)["BK"],
                ),
            ]  # fmt: skip
            return sequence(steps)
        if not sorts:
            steps.append(group_step(self, sig, table, ids, order, offsets))
        own = self.tile("pairs", sig, pair_tile(sig, pairs))
        tile = {**own, "TYPE": dot_type(sig), "BE": block(e, 1)}
        tiles = most_tiles(pairs, e, tile["BP"])
        high = tiles + cdiv(sig["T"], tile["BP"])
        columns = block(d, 16, 512)
        steps += [
            self.launcher(
                sig, moe_hidden_rows, (cdiv(max(f, fs), tile["BN"]), high),
                table, order, offsets, h, norm, eps, hidden, shared_hidden, *inward,
                e, r, d, f, fs, tiles, **first, **tile,
            ),
            self.launcher(
                sig, moe_down_rows, (cdiv(d, tile["BN"]), high),
                table, order, offsets, hidden, shared_hidden, parts, shared, *outward,
                e, d, f, fs, tiles, **second, **tile,
            ),
            self.launcher(
                sig, combine_kernel, (sig["T"], cdiv(d, columns)),
                table, parts, ids, weights, shared, scale, h, y, d, R=r, BD=columns,
            ),
        ]  # fmt: skip
        return sequence(steps)

    def _route(
        self,
        sig: Signature,
        table: torch.Tensor,
        logits: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        order: torch.Tensor | None,
        offsets: torch.Tensor | None,
    ) -> CudaStep:
        words, experts = Words.of(sig.layout), block(sig["E"])
        top_p = float(sig.attr("top_p"))
        # counts up and is set back by the launch itself, so it must not lie in shared scratch
        arrived = self.device.zeros(1, torch.int32, "counter of moe")
        return self.launcher(
            sig,
            route_kernel,
            (sig["T"],),
            table,
            words.segments,
            words.row_segment,
            logits,
            ids,
            weights,
            order,
            offsets,
            arrived,
            sig["E"],
            top_p,
            R=sig["R"],
            BR=block(sig["R"], 1),
            BE=experts,
            CORESET=top_p < 1 and sig.table.has_preview,
            **mass_tile(experts),
            **grouping_tile(sig["T"] * sig["R"]),
        )


def _formats(weights: Sequence[DeviceWeight], names: tuple[str, ...]) -> dict[str, Any]:
    """Return format and group of each weight by the names of a kernel's constants."""
    values = [value for weight in weights for value in (weight.format, weight.group)]
    return dict(zip(names, values, strict=True))


def _counts(sig: Signature) -> tuple[int, ...]:
    """Return the words of router logits, gate of the shared expert, weights, hidden rows of both,
    outputs of both, ids, order and offsets."""
    rows, pairs = sig["T"], sig["T"] * sig["R"]
    hidden, shared = pairs * sig["F"], rows * sig["Fs"]
    outputs = (pairs * sig["D"], rows * sig["D"])
    index = (pairs, pairs, sig["E"] + 1)
    return rows * sig["E"], rows, pairs, hidden, shared, *outputs, *index
