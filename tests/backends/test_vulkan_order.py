"""What the vulkan driver decides without a device: order, cuts, and places in blocks of memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from clover_rt_vulkan.driver import Binding, Dispatch
from clover_rt_vulkan.driver.blocks import BLOCK, Blocks
from clover_rt_vulkan.driver.order import even_cuts, stages

A, B, C = "buffer a", "buffer b", "buffer c"


def reads(memory: str, offset: int = 0, nbytes: int = 64) -> Binding:
    return Binding(memory, offset, nbytes, False)


def writes(memory: str, offset: int = 0, nbytes: int = 64) -> Binding:
    return Binding(memory, offset, nbytes, True)


def chain(*bindings: list[Binding]) -> list[Dispatch]:
    return [Dispatch("op", None, (1, 1, 1), tuple(b), b"") for b in bindings]


@pytest.mark.parametrize(
    ("dispatches", "waits"),
    [
        pytest.param(chain([writes(A)], [reads(A)]), [1], id="a read of what was written waits"),
        pytest.param(chain([reads(A)], [writes(A)]), [1], id="a write of what was read waits"),
        pytest.param(chain([writes(A)], [writes(A)]), [1], id="a write of what was written waits"),
        pytest.param(chain([reads(A)], [reads(A)]), [], id="two reads run side by side"),
        pytest.param(chain([writes(A)], [writes(B)]), [], id="other buffers do not matter"),
        pytest.param(
            chain([writes(A, 0)], [reads(A, 64)]), [], id="other bytes of a buffer do not matter"
        ),
        pytest.param(
            chain([writes(A, 0, 65)], [reads(A, 64)]), [1], id="one shared byte is enough"
        ),
        pytest.param(
            chain([writes(A)], [writes(B)], [reads(A), writes(C)], [reads(B)]),
            [2],
            id="one wait serves all that came before",
        ),
        pytest.param(
            chain([reads(A)], [reads(A)], [writes(A)], [reads(A)]), [2, 3], id="every read counts"
        ),
        pytest.param([], [], id="nothing waits in nothing"),
    ],
)
def test_a_dispatch_waits_where_data_flows(dispatches: list[Dispatch], waits: list[int]) -> None:
    assert stages(dispatches) == waits


@pytest.mark.parametrize(
    ("costs", "parts", "starts"),
    [
        ([1, 1, 1, 1], 1, [0]),
        ([1, 1, 1, 1], 2, [0, 2]),
        ([1, 1, 1, 1], 4, [0, 1, 2, 3]),
        # a dispatch that takes most of the time has a submission of its own
        ([1, 1, 6, 1, 1], 2, [0, 3]),
        ([9, 1], 2, [0, 1]),
    ],
)
def test_a_pass_is_cut_into_parts_of_about_equal_time(
    costs: list[float], parts: int, starts: list[int]
) -> None:
    assert even_cuts(costs, parts) == starts


class Heap:
    """Counts what is allocated and given back."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.made = 0

    def allocate(self, nbytes: int) -> int:
        self.made += 1
        self.live[self.made] = nbytes
        return self.made

    def release(self, memory: int) -> None:
        del self.live[memory]


@pytest.fixture
def heap() -> Heap:
    return Heap()


def test_places_of_a_block_are_aligned_and_never_overlap(heap: Heap) -> None:
    blocks = Blocks(heap.allocate, heap.release)
    rng = random.Random(1)
    held: list[Any] = []
    for _ in range(2000):
        if held and rng.random() < 0.45:
            blocks.give(held.pop(rng.randrange(len(held))))
            continue
        size, alignment = rng.randrange(1, 3 << 20), rng.choice((16, 64, 256))
        place = blocks.take(size, alignment)
        assert place.start % alignment == 0
        assert place.end - place.start == size and place.end <= place.block.nbytes
        for other in held:
            if other.block is place.block:
                assert place.end <= other.start or other.end <= place.start
        held.append(place)
    assert blocks.reserved == sum(heap.live.values())
    for place in held:
        blocks.give(place)
    assert heap.live == {} and blocks.reserved == 0


def test_a_model_of_thousands_of_buffers_needs_few_allocations(heap: Heap) -> None:
    blocks = Blocks(heap.allocate, heap.release)
    for _ in range(4096):
        blocks.take(64 << 10, 256)
    assert heap.made == 4096 * (64 << 10) // BLOCK


def test_what_is_too_large_to_share_has_a_block_of_its_size(heap: Heap) -> None:
    blocks = Blocks(heap.allocate, heap.release)
    place = blocks.take(3 * BLOCK, 16)
    assert list(heap.live.values()) == [3 * BLOCK]
    blocks.give(place)
    assert heap.live == {}
