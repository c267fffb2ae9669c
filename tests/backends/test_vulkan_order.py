"""What the vulkan driver decides without a device: order, cuts, and places in blocks of memory."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from clover_rt.spec import TableClass
from clover_rt_vulkan.driver import Binding, Dispatch
from clover_rt_vulkan.driver.blocks import BLOCK, Blocks
from clover_rt_vulkan.driver.order import cuts, even_cuts, first_cuts, stages
from tests.toy import PRIMITIVES, ToyDevice
from tests.unit.plan_bench import bind_toy

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


@pytest.mark.parametrize(
    ("costs", "layers", "budget", "starts"),
    [
        pytest.param([1] * 8, [0, 2, 4, 6], 8, [0], id="what is within the budget stays whole"),
        pytest.param([1] * 8, [0, 3, 6], 4, [0, 6], id="a cut falls between layers only"),
        pytest.param([1] * 8, [0, 3, 6], 3, [0, 3, 6], id="a submission for each layer"),
        pytest.param(
            [1, 1, 4, 4, 1, 1],
            [0, 2, 4],
            5,
            [0, 2, 3, 4],
            id="a layer over the budget is cut inside",
        ),
        pytest.param([9, 1], [0, 1], 5, [0, 1], id="a dispatch over the budget stays whole"),
    ],
)
def test_a_long_pass_is_cut_between_layers(
    costs: list[float], layers: list[int], budget: float, starts: list[int]
) -> None:
    assert cuts(costs, layers, budget) == starts


def test_a_pass_that_was_never_timed_is_cut_at_layers_with_enough_dispatches_before() -> None:
    assert first_cuts([0, 30, 70, 90, 160], 64) == [0, 70, 160]


class LayersTold(ToyDevice):
    """Keeps the layers that it is told of."""

    def capture_layers(self, layers: Any) -> Any:
        self.layers = [len(layer) for layer in layers]
        return super().capture_layers(layers)


def test_the_plan_tells_which_steps_are_a_layer() -> None:
    """Of a plan of layer ops that are decomposed, with all steps on the device."""
    device = LayersTold("toy", PRIMITIVES)
    program = bind_toy(device).program(TableClass.COMMIT, 1)
    names = [action.node.name for action in program.actions if action.node is not None]
    # layers.3.moe/norm is of layer 3, pick/norm of pick
    parts = [name.split("/")[0].split(".") for name in names]
    assert device.layers == list(Counter(".".join(p[:2]) for p in parts).values())
    assert len(device.layers) > 3 and device.captured == 1


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
