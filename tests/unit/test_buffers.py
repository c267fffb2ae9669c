"""Weights cut by rows into buffers of a limited size."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.backend import HostBuffer, HostDevice, Usage
from clover_rt.buffers import Part, in_parts
from clover_rt.errors import OutOfMemory
from clover_rt.spec import HostWeight, Weight, encode_q4, encode_q8

ROWS, COLUMNS = 37, 64


class Small(HostDevice):
    """A device on the host whose buffers have at most so many bytes."""

    name = "small"

    def __init__(self, largest: int) -> None:
        self.max_binding_bytes = largest

    def allocate(self, nbytes: int, what: str) -> HostBuffer:
        assert nbytes <= self.max_binding_bytes, what
        return self.alloc(nbytes, Usage.SCRATCH)


def made(zero: bool = True, columns: int = COLUMNS) -> Weight:
    values = np.random.default_rng(0).normal(size=(ROWS, columns)).astype(np.float32)
    return encode_q4(values, 32, zero_point=True) if zero else encode_q8(values)


def joined(device: Small, parts: tuple[Part[HostBuffer], ...], name: str) -> bytes:
    out = []
    for part in parts:
        data = np.empty(part.buffers[name].nbytes, np.uint8)
        device.download(part.buffers[name], 0, data)
        out.append(data.tobytes())
    return b"".join(out)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize(("multiple", "counts"), [(1, [10, 10, 10, 7]), (4, [8, 8, 8, 8, 5])])
def test_parts_have_all_rows_in_order(zero: bool, multiple: int, counts: list[int]) -> None:
    weight = made(zero)
    device = Small(10 * weight.codes.nbytes // ROWS)
    parts = in_parts(device, {"w": HostWeight.of(weight, "layers.0.w")}, multiple)["w"]
    assert [p.count for p in parts] == counts
    assert [p.first for p in parts] == list(np.cumsum([0, *counts[:-1]]))
    assert joined(device, parts, "codes") == weight.codes.tobytes()
    assert joined(device, parts, "scale") == weight.scale.tobytes()
    assert all(p.has_zero is zero for p in parts)
    if zero:
        assert joined(device, parts, "zero") == weight.zero.tobytes()


def test_weights_of_an_operation_are_cut_at_the_same_rows() -> None:
    weights = {
        "wide": HostWeight.of(made(), "wide"),
        "narrow": HostWeight.of(made(columns=32), "n"),
    }
    parts = in_parts(Small(10 * COLUMNS // 2), weights)
    assert {name: [p.count for p in of] for name, of in parts.items()} == {
        "wide": [10, 10, 10, 7],
        "narrow": [10, 10, 10, 7],
    }


def test_a_part_has_no_more_numbers_than_a_kernel_can_count() -> None:
    weight = HostWeight.of(made(), "w")
    parts = in_parts(Small(1 << 20), {"w": weight}, most_numbers=5 * COLUMNS)["w"]
    assert max(p.count for p in parts) == 5


def test_a_weight_without_room_for_the_least_part_is_named() -> None:
    with pytest.raises(OutOfMemory, match=r"layers\.0\.w was to be copied to small") as caught:
        in_parts(Small(100), {"w": HostWeight.of(made(), "layers.0.w")}, multiple=4)
    assert "4 rows of its first axis take 128 bytes" in caught.value.evidence
    assert "the largest buffer holds 100" in caught.value.evidence


def test_a_piece_without_zero_points_beside_one_with_has_eights() -> None:
    half = encode_q4(np.ones((ROWS, COLUMNS), np.float32), 32)
    pieces = [made(), half]
    mixed = HostWeight("w", half.format, (2 * ROWS, COLUMNS), pieces, half.group)
    device = Small(1 << 20)
    parts = in_parts(device, {"w": mixed})["w"]
    groups = COLUMNS // half.group
    assert joined(device, parts, "zero") == made().zero.tobytes() + bytes([8] * ROWS * groups)
