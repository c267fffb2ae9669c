"""The raw driver: Vulkan through the bindings of the package `vulkan`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import vulkan
from vulkan import ffi, lib

from clover_rt_vulkan.driver import (
    Bytes,
    Counts,
    Dispatch,
    Driver,
    DriverFailure,
    Shape,
    Trouble,
)
from clover_rt_vulkan.driver.blocks import Blocks, Place
from clover_rt_vulkan.driver.cards import (
    BUDGET,
    FEATURES,
    INTEGER_DOT,
    Card,
    budgets,
    feature_structs,
)
from clover_rt_vulkan.driver.pipelines import Pipeline, Pipelines
from clover_rt_vulkan.driver.queue import RING_BYTES, Queue, Ring
from clover_rt_vulkan.driver.recording import Handles, Recording
from clover_rt_vulkan.driver.vk import NULL, call, made, struct

# a submission is to stay below this; desktops reset a card after 2 s and more
BUDGET_S = 0.25
USES = (
    vulkan.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
    | vulkan.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
    | vulkan.VK_BUFFER_USAGE_TRANSFER_DST_BIT
)
OWN = vulkan.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
SEEN = vulkan.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vulkan.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
CACHED = vulkan.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
# a buffer with its place and size, or a recording's parts
Held = tuple[Any, Place, int] | Handles


class Memory:
    """A buffer of the device: freed when nothing refers to it, and no earlier than its last use."""

    __slots__ = ("__weakref__", "handle", "nbytes")

    def __init__(self, handle: Any, nbytes: int) -> None:
        self.handle = handle
        self.nbytes = nbytes


class RawDriver(Driver):
    """One card, opened.

    instance  of Vulkan, which listed the card; destroyed at the end
    budget_s  how long a submission may run
    cache     folder of compiled pipelines; None: the user's
    """

    def __init__(
        self, instance: Any, card: Card, budget_s: float = BUDGET_S, cache: Path | None = None
    ) -> None:
        self.card = card
        self.limits = card.limits
        self.features = card.features
        self.counts = Counts()
        self.budget_s = budget_s
        self.used = 0
        self._instance = instance
        self._device = _open(card)
        about = f"{card.name} {card.driver} {card.cache_id}"
        self.pipelines = Pipelines(self._device, about, cache)
        # what buffers and recordings hold of the driver, by number; and what nothing refers to any
        # more, though the device may still be at work with it
        self._held: dict[int, Held] = {}
        self._gone: list[Held] = []
        self._numbers = count()
        self._properties = ffi.new("VkPhysicalDeviceMemoryProperties*")
        lib.vkGetPhysicalDeviceMemoryProperties(card.handle, self._properties)
        self._blocks = Blocks(self._allocate, self._free)
        buffer = self._bare_buffer(RING_BYTES)
        allowed = self._need(buffer).memoryTypeBits
        self._kind = self._memory_type(allowed, OWN, 0)
        self._ring_memory = self._bare_memory(RING_BYTES, self._memory_type(allowed, SEEN, CACHED))
        self._ring = self._map_ring(buffer)
        self.queue = Queue(self._device, card.family, self._ring, self.counts)

    def buffer(self, nbytes: int) -> Memory:
        # whole words, and some beyond, so that an empty operand at the end has a place
        size = -(-nbytes // 16) * 16 + 16
        handle = self._bare_buffer(size)
        need = self._need(handle)
        try:
            place = self._take(int(need.size), int(need.alignment))
        except DriverFailure:
            lib.vkDestroyBuffer(self._device, handle, NULL)
            raise
        call("vkBindBufferMemory", self._device, handle, place.block.memory, place.start)
        memory = Memory(handle, nbytes)
        self.used += nbytes
        self._when_gone(memory, (handle, place, nbytes))
        self.queue.zero(handle, size)
        return memory

    def memory(self) -> tuple[int, int]:
        self.wait()
        total = self.card.memory_bytes
        free = min(self._left() + self._blocks.reserved, total) - self.used
        return total, max(free, 0)

    def upload(self, memory: Memory, offset: int, data: Bytes) -> None:
        self.queue.upload(memory.handle, offset, data)

    def download(self, memory: Memory, offset: int, data: Bytes) -> None:
        self.queue.download(memory.handle, offset, data)
        self._reap()

    def copy(self, dst: Memory, dst_offset: int, src: Memory, src_offset: int, n: int) -> None:
        if dst is src and abs(dst_offset - src_offset) < n:
            # a copy must not overlap itself
            between = self.buffer(n)
            self.queue.copy(src.handle, src_offset, between.handle, 0, n)
            self.queue.copy(between.handle, 0, dst.handle, dst_offset, n)
        else:
            self.queue.copy(src.handle, src_offset, dst.handle, dst_offset, n)

    def pipeline(self, code: bytes, shape: Shape, constants: Mapping[int, int]) -> Pipeline:
        return self.pipelines.get(code, shape, constants)

    def record(self, dispatches: Sequence[Dispatch], layers: Sequence[int] = (0,)) -> Recording:
        self._reap()
        self.pipelines.save()
        recording = Recording(self.queue, self.card, dispatches, layers)
        self._when_gone(recording, recording.handles)
        return recording

    def submit(self, recording: Recording) -> None:
        """Add a recording to the queue; one that is still under way is waited for first."""
        if recording.number > self.queue.done:
            self.queue.wait(recording.number)
        recording.fit(self.budget_s)
        recording.number = self.queue.add(recording.pieces)
        self.counts.passes += 1
        self.counts.cut_passes += len(recording.pieces) > 1

    def wait(self) -> None:
        self.queue.wait()
        self._reap()

    def times(self, recording: Recording) -> list[float]:
        self.queue.wait(recording.number)
        return recording.read_times()

    def close(self) -> None:
        # a device that is lost is only let go
        with suppress(DriverFailure):
            self.wait()
        lib.vkDeviceWaitIdle(self._device)
        self.pipelines.save()
        self._gone += self._held.values()
        self._held.clear()
        self._drop_gone()
        self.queue.close()
        self.pipelines.close()
        lib.vkDestroyBuffer(self._device, self._ring.buffer, NULL)
        self._free(self._ring_memory)
        self._blocks.close()
        lib.vkDestroyDevice(self._device, NULL)
        lib.vkDestroyInstance(self._instance, NULL)

    def _take(self, nbytes: int, alignment: int) -> Place:
        try:
            return self._blocks.take(nbytes, alignment)
        except DriverFailure as failure:
            if failure.trouble is not Trouble.MEMORY or not self._gone:
                raise
        # what was let go may be free as soon as the device has ended
        self.wait()
        return self._blocks.take(nbytes, alignment)

    def _allocate(self, nbytes: int) -> Any:
        """Return memory of the card's own; a driver may give the host's where that is full."""
        left = self._left()
        if nbytes > left:
            cause = f"a block of {nbytes} bytes is needed, {left} bytes are left"
            raise DriverFailure(Trouble.MEMORY, "vkAllocateMemory", cause)
        return self._bare_memory(nbytes, self._kind)

    def _left(self) -> int:
        """Return the bytes that may still be allocated."""
        told = budgets(self.card)
        if not told:
            return self.card.memory_bytes - self._blocks.reserved
        heap = int(self._properties.memoryTypes[self._kind].heapIndex)
        return told[heap]

    def _memory_type(self, allowed: int, needed: int, liked: int) -> int:
        """Return the type in the largest heap that has what is needed, and what is liked if any."""
        found = self._properties
        types = [found.memoryTypes[i] for i in range(found.memoryTypeCount)]
        able = [
            i
            for i, t in enumerate(types)
            if allowed >> i & 1 and t.propertyFlags & needed == needed
        ]
        return max(
            able,
            key=lambda i: (
                types[i].propertyFlags & liked == liked,
                found.memoryHeaps[types[i].heapIndex].size,
            ),
        )

    def _bare_buffer(self, nbytes: int) -> Any:
        info = struct("BufferCreateInfo", size=nbytes, usage=USES)
        return made("vkCreateBuffer", self._device, info)

    def _bare_memory(self, nbytes: int, kind: int) -> Any:
        info = struct("MemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=kind)
        return made("vkAllocateMemory", self._device, info)

    def _need(self, buffer: Any) -> Any:
        need = ffi.new("VkMemoryRequirements*")
        lib.vkGetBufferMemoryRequirements(self._device, buffer, need)
        return need

    def _map_ring(self, buffer: Any) -> Ring:
        call("vkBindBufferMemory", self._device, buffer, self._ring_memory, 0)
        at = ffi.new("void**")
        call("vkMapMemory", self._device, self._ring_memory, 0, RING_BYTES, 0, at)
        return Ring(buffer, np.frombuffer(ffi.buffer(at[0], RING_BYTES), np.uint8))

    def _free(self, memory: Any) -> None:
        lib.vkFreeMemory(self._device, memory, NULL)

    def _when_gone(self, thing: Any, held: Held) -> None:
        number = next(self._numbers)
        self._held[number] = held
        weakref.finalize(thing, self._let_go, number).atexit = False

    def _let_go(self, number: int) -> None:
        # after `close` there is nothing left to free
        if number in self._held:
            self._gone.append(self._held.pop(number))

    def _reap(self) -> None:
        """Free what nothing refers to, if the device has ended everything."""
        if self._gone and self.queue.is_idle:
            self._drop_gone()

    def _drop_gone(self) -> None:
        while self._gone:
            held = self._gone.pop()
            if isinstance(held, Handles):
                held.drop()
            else:
                handle, place, nbytes = held
                lib.vkDestroyBuffer(self._device, handle, NULL)
                self._blocks.give(place)
                self.used -= nbytes


def _open(card: Card) -> Any:
    """Return a device with one queue, and with the features that shaders may ask for."""
    has_dot = "int8_dot" in card.features
    chain = feature_structs(has_dot)
    for name, (kind, field) in FEATURES.items():
        if name in card.features:
            setattr(chain[kind], field, 1)
    chain["PhysicalDeviceVulkan12Features"].timelineSemaphore = 1
    family = struct(
        "DeviceQueueCreateInfo",
        queueFamilyIndex=card.family,
        queueCount=1,
        pQueuePriorities=[1.0],
    )
    wanted = [BUDGET] if BUDGET in card.extensions else []
    if has_dot:
        wanted.append(INTEGER_DOT)
    info = struct(
        "DeviceCreateInfo",
        pNext=next(reversed(chain.values())),
        queueCreateInfoCount=1,
        pQueueCreateInfos=[family],
        enabledExtensionCount=len(wanted),
        ppEnabledExtensionNames=wanted,
    )
    out = ffi.new("VkDevice*")
    call("vkCreateDevice", card.handle, info, NULL, out)
    return out[0]
