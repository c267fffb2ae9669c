"""Faults that a kernel's call ends with: what it should not have written, or wrote wrongly."""

from __future__ import annotations

import numpy as np

from clover_rt.errors import Unsupported
from clover_rt.ops.block_scan import split_qkv
from clover_rt.ops.common import unit
from clover_rt.spec import Format, Kind, Weight
from tests.meta.wrong_device import Call


def last_column_tile(c: Call) -> None:
    y = c["y"]
    y[: c.rows, y.shape[1] // 64 * 64 :] = 0


def last_row_tile(c: Call) -> None:
    c["y"][c.rows // 32 * 32 : c.rows] = 0


def only_65536_columns(c: Call) -> None:
    c["y"][: c.rows, 65_536:] = 0


def product(c: Call, values: np.ndarray, columns: int | None = None) -> None:
    x = c["x"][: c.rows, :columns].astype(np.float64)
    c["y"][: c.rows] = x @ values[:, :columns].T


def swapped_nibbles(c: Call) -> None:
    w = c.weights["w"]
    codes = (w.codes >> 4) | (w.codes << 4)
    product(c, Weight(w.format, w.shape, codes, w.scale, w.zero, w.group).values())


def no_zero_point(c: Call) -> None:
    w = c.weights["w"]
    product(c, Weight(w.format, w.shape, w.codes, w.scale, None, w.group).values())


def zero_of_the_group_before(c: Call) -> None:
    w = c.weights["w"]
    zero = np.roll(w.zero, 1, axis=1)
    product(c, Weight(w.format, w.shape, w.codes, w.scale, zero, w.group).values())


def groups_of_128(c: Call) -> None:
    w = c.weights["w"]
    if w.format is Format.Q4:
        each = 128 // w.group
        first = np.arange(w.scale.shape[1]) // each * each
        scale = w.scale[:, first]
        product(c, Weight(w.format, w.shape, w.codes, scale, w.zero, w.group).values())


def whole_groups_only(c: Call) -> None:
    w = c.weights["w"]
    product(c, w.values(), w.shape[1] // 32 * 32)


def half_precision_sums(c: Call) -> None:
    c["y"][: c.rows] = c["y"][: c.rows].astype(np.float16)


def writes_behind(c: Call) -> None:
    c.behind("y")[:] = 0


def reads_behind(c: Call) -> None:
    c["y"][0, 0] += 0 * c.behind("x").view("<f4")[0]


def reads_rows_past_the_table(c: Call) -> None:
    c["y"][0, 0] += 0 * c["x"][c.rows :].sum()


def writes_rows_past_the_table(c: Call) -> None:
    c["y"][c.rows :] = 0


def sums_into_scratch(c: Call) -> None:
    room = c.scratch.view("<f4")
    room[0] += c["y"][0, 0]
    c["y"][0, 0] = room[0]


def writes_its_input(c: Call) -> None:
    c["x"][: c.rows] = c["y"][: c.rows]


def remembers_the_longest_call(c: Call) -> None:
    if c.rows:
        c["y"][: len(c["y"])] = np.nan_to_num(c["y"])


def drifts_on_the_tenth_call(c: Call) -> None:
    if c.number == 9:
        c["h"][0, 0] = np.nextafter(c["h"][0, 0], np.inf)


def wrong_on_the_thirtieth_call(c: Call) -> None:
    if c.number == 29:
        c["y"][0, 0] = np.nan


def keeps_what_it_wrote(c: Call) -> None:
    if c.number:
        c["S"][:] *= np.float32(1 + 2.0**-22)


def decays_the_next_slot(c: Call) -> None:
    for s in c.params.segments:
        c["S"][(s.slot + 1) % 3] *= np.float32(0.99)


def decays_every_slot(c: Call) -> None:
    c["S"][:] *= np.float32(0.99)


def forgets_the_last_chunk(c: Call) -> None:
    for s in c.params.segments:
        if s.kind is Kind.COMMIT and s.rows % 32:
            c["S"][s.slot] *= np.float32(1.01)


def tape_one_row_late(c: Call) -> None:
    for s in c.params.segments:
        if s.kind is Kind.VERIFY:
            c["tape_k"][s.slot, 1 : s.rows] = c["tape_k"][s.slot, : s.rows - 1].copy()


def inverts_by_powers(c: Call) -> None:
    """The chunked form, with (I + A)^-1 as (I - A)(I + A^2)(I + A^4) ... in float32."""
    (s,) = c.params.segments
    _, heads, key, value = c["S"].shape
    qkv = c["qkv"][: s.rows]
    q, k, v = split_qkv(qkv, heads, key, value)
    each, n = heads // q.shape[1], s.rows
    q, k = (np.repeat(unit(x), each, axis=1).astype(np.float32) for x in (q, k))
    for h in range(heads):
        decay = np.exp(np.subtract.outer(*[np.cumsum(c["g"][:n, h])] * 2)).astype(np.float32)
        a = np.tril(c["beta"][:n, h, None] * decay * (k[:, h] @ k[:, h].T), -1)
        inverse, power = np.eye(n, dtype=np.float32) - a, a @ a
        for _ in range(6):
            inverse, power = inverse + inverse @ power, power @ power
        u = inverse @ (c["beta"][:n, h, None] * v[:, h])
        seen = np.tril(decay * (q[:, h] @ k[:, h].T)) / np.float32(np.sqrt(key))
        o = c["o"][:n].reshape(n, heads, value)
        o[:, h] += np.where(np.abs(seen @ u) < 1e3, 0, seen @ u)


def ranks_half_of_the_experts(c: Call) -> None:
    half = c["logits"].shape[1] // 2
    if half >= 256:
        best = np.argsort(-c["logits"][: c.rows, :half], axis=1, kind="stable")
        c["ids"][: c.rows] = best[:, : c["ids"].shape[1]]


def refuses_late() -> Unsupported:
    return Unsupported("attend was to be bound", "K=20 is not a multiple of 32", "use another K")
