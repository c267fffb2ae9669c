"""Recordings: dispatches in command buffers, made once and submitted for every pass.

A recording is one submission unless it takes longer than the budget: then it is cut between layers
into several of about equal time, since a desktop's driver resets a card whose submission runs for
seconds. The first run, whose time is not known, is cut at the first layer after FIRST dispatches,
and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Any

import vulkan
from vulkan import ffi, lib

from clover_rt_vulkan.driver import Dispatch
from clover_rt_vulkan.driver.cards import Card
from clover_rt_vulkan.driver.order import cuts, first_cuts, stages
from clover_rt_vulkan.driver.queue import COPIES, SHADERS, Queue, barrier, begin
from clover_rt_vulkan.driver.vk import NULL, call, made, struct

FIRST = 64
# how far a submission may exceed the budget before the recording is cut anew
SLACK = 1.5


class Recording:
    """Dispatches, recorded as `pieces`: command buffers that are submitted one by one.

    layers  index of the first dispatch of each layer
    number  of the submission that ends its last run; 0 before the first
    """

    def __init__(
        self, queue: Queue, card: Card, dispatches: Sequence[Dispatch], layers: Sequence[int]
    ) -> None:
        self.queue = queue
        self.dispatches = tuple(dispatches)
        # a layer without dispatches begins where the next one does
        self.layers = sorted({start for start in layers if start < len(self.dispatches)})
        self.number = 0
        self.pieces: list[Any] = []
        self._device = queue.device
        self._clock = card.tick_ns if card.clock_bits else 0.0
        self._mask = (1 << card.clock_bits) - 1
        self._stages = frozenset(stages(self.dispatches))
        self._starts = first_cuts(self.layers, FIRST)
        self.handles = Handles(self._device, queue.pool)
        self._sets = self._bind()
        self._record()

    def fit(self, budget_s: float) -> None:
        """Read the last run's times, and cut anew where they are far from the budget.

        The last run has ended.
        """
        seconds = self.read_times()
        if not seconds:
            return
        total, longest = sum(seconds), max(seconds)
        parts = max(1, ceil(total / budget_s))
        if longest <= SLACK * budget_s and len(self.pieces) <= max(parts, 2 * parts - 2):
            return
        costs = []
        for each, (lo, hi) in zip(seconds, self._ranges(), strict=True):
            costs += [each / (hi - lo)] * (hi - lo)
        starts = cuts(costs, self.layers, budget_s)
        if starts == self._starts:
            # one dispatch alone may be over the budget
            return
        self._starts = starts
        self._record()
        # the new command buffers have not run
        self.number = 0

    def read_times(self) -> list[float]:
        """Return the seconds of each piece of the last run, which has ended; [] if not known."""
        if not self.number or self.handles.clock is None:
            return []
        count = 2 * len(self.pieces)
        ticks = ffi.new("uint64_t[]", count)
        flags = vulkan.VK_QUERY_RESULT_64_BIT
        call(
            "vkGetQueryPoolResults",
            *(self._device, self.handles.clock, 0, count, 8 * count, ticks, 8, flags),
        )
        spans = zip(list(ticks)[::2], list(ticks)[1::2], strict=True)
        return [((b - a) & self._mask) * self._clock / 1e9 for a, b in spans]

    def _ranges(self) -> list[tuple[int, int]]:
        return list(pairwise([*self._starts, len(self.dispatches)]))

    def _bind(self) -> list[Any]:
        """Return a descriptor set for each dispatch."""
        total = sum(len(d.bindings) for d in self.dispatches)
        size = struct(
            "DescriptorPoolSize",
            type=vulkan.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            descriptorCount=max(total, 1),
        )
        info = struct(
            "DescriptorPoolCreateInfo",
            maxSets=max(len(self.dispatches), 1),
            poolSizeCount=1,
            pPoolSizes=[size],
        )
        self.handles.sets = made("vkCreateDescriptorPool", self._device, info)
        return [self._set(d) for d in self.dispatches]

    def _set(self, dispatch: Dispatch) -> Any:
        info = struct(
            "DescriptorSetAllocateInfo",
            descriptorPool=self.handles.sets,
            descriptorSetCount=1,
            pSetLayouts=[dispatch.pipeline.layout.buffers],
        )
        out = ffi.new("VkDescriptorSet*")
        call("vkAllocateDescriptorSets", self._device, info, out)
        count = len(dispatch.bindings)
        buffers = ffi.new("VkDescriptorBufferInfo[]", count)
        writes = ffi.new("VkWriteDescriptorSet[]", count)
        for i, b in enumerate(dispatch.bindings):
            buffers[i].buffer = b.memory.handle
            buffers[i].offset = b.offset
            buffers[i].range = b.nbytes
            writes[i].sType = vulkan.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET
            writes[i].dstSet = out[0]
            writes[i].dstBinding = i
            writes[i].descriptorCount = 1
            writes[i].descriptorType = vulkan.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
            writes[i].pBufferInfo = buffers + i
        lib.vkUpdateDescriptorSets(self._device, count, writes, 0, NULL)
        return out[0]

    def _record(self) -> None:
        """Record the pieces anew."""
        self.handles.drop_commands()
        self.pieces = self.queue.allocate(len(self._starts)) if self._starts else []
        self.handles.commands = self.pieces
        self.handles.clock = self._query_pool() if self._clock and self.pieces else None
        for i, (lo, hi) in enumerate(self._ranges() if self.pieces else []):
            commands = self.pieces[i]
            begin(commands)
            self._stamp(commands, 2 * i, vulkan.VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT)
            barrier(commands, (COPIES, SHADERS), SHADERS)
            for j in range(lo, hi):
                if j in self._stages and j > lo:
                    barrier(commands, (SHADERS,), SHADERS)
                self._dispatch(commands, self.dispatches[j], self._sets[j])
            self._stamp(commands, 2 * i + 1, vulkan.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT)
            call("vkEndCommandBuffer", commands)

    def _dispatch(self, commands: Any, dispatch: Dispatch, bound: Any) -> None:
        point, layout = vulkan.VK_PIPELINE_BIND_POINT_COMPUTE, dispatch.pipeline.layout.pipeline
        lib.vkCmdBindPipeline(commands, point, dispatch.pipeline.handle)
        sets = ffi.new("VkDescriptorSet[]", [bound])
        lib.vkCmdBindDescriptorSets(commands, point, layout, 0, 1, sets, 0, NULL)
        if dispatch.push:
            stage, push = vulkan.VK_SHADER_STAGE_COMPUTE_BIT, ffi.from_buffer(dispatch.push)
            lib.vkCmdPushConstants(commands, layout, stage, 0, len(dispatch.push), push)
        lib.vkCmdDispatch(commands, *dispatch.groups)

    def _query_pool(self) -> Any:
        info = struct(
            "QueryPoolCreateInfo",
            queryType=vulkan.VK_QUERY_TYPE_TIMESTAMP,
            queryCount=2 * len(self.pieces),
        )
        return made("vkCreateQueryPool", self._device, info)

    def _stamp(self, commands: Any, query: int, stage: int) -> None:
        if self.handles.clock is None:
            return
        if query % 2 == 0:
            lib.vkCmdResetQueryPool(commands, self.handles.clock, query, 2)
        lib.vkCmdWriteTimestamp(commands, stage, self.handles.clock, query)


class Handles:
    """What a recording holds of the driver, so that it can be freed after the recording is gone."""

    def __init__(self, device: Any, pool: Any) -> None:
        self.device, self.pool = device, pool
        self.sets: Any = None
        self.clock: Any = None
        self.commands: list[Any] = []

    def drop_commands(self) -> None:
        """Free the command buffers and their clock."""
        if self.commands:
            found = ffi.new("VkCommandBuffer[]", self.commands)
            lib.vkFreeCommandBuffers(self.device, self.pool, len(self.commands), found)
            self.commands = []
        if self.clock is not None:
            lib.vkDestroyQueryPool(self.device, self.clock, NULL)
            self.clock = None

    def drop(self) -> None:
        self.drop_commands()
        if self.sets is not None:
            lib.vkDestroyDescriptorPool(self.device, self.sets, NULL)
            self.sets = None
