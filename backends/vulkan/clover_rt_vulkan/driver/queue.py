"""The queue: copies and recordings are collected, handed over together, and waited for by number.

Uploads and downloads go through a ring of memory that the host can write. Work runs in the order in
which it was added, with a barrier in front of each copy and of each recording.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import vulkan
from vulkan import ffi, lib

from clover_rt_vulkan.driver import Bytes, Counts
from clover_rt_vulkan.driver.vk import NULL, call, made, struct

RING_BYTES = 32 << 20
# what is copied in one piece: several pieces are under way while the host fills the next one
PIECE_BYTES = RING_BYTES // 4
# between two looks at the semaphore the interpreter can see Ctrl-C
PATIENCE_NS = 1_000_000_000
COPIES = vulkan.VK_PIPELINE_STAGE_TRANSFER_BIT
SHADERS = vulkan.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
HOST = vulkan.VK_PIPELINE_STAGE_HOST_BIT
# how each stage writes and reads
WRITES = {
    COPIES: vulkan.VK_ACCESS_TRANSFER_WRITE_BIT,
    SHADERS: vulkan.VK_ACCESS_SHADER_WRITE_BIT,
    HOST: vulkan.VK_ACCESS_HOST_WRITE_BIT,
}
READS = {
    COPIES: vulkan.VK_ACCESS_TRANSFER_READ_BIT,
    SHADERS: vulkan.VK_ACCESS_SHADER_READ_BIT,
    HOST: vulkan.VK_ACCESS_HOST_READ_BIT,
}


@dataclass(frozen=True, slots=True)
class Ring:
    """Memory that both sides see: the buffer, and its bytes as the host has them."""

    buffer: Any
    host: Bytes


class Queue:
    """One queue of a device.

    submitted  number of the last submission
    done       all submissions up to this number are known to have ended
    """

    def __init__(self, device: Any, family: int, ring: Ring, counts: Counts) -> None:
        self.device = device
        self.ring = ring
        self.counts = counts
        self.submitted = 0
        self.done = 0
        queue = ffi.new("VkQueue*")
        lib.vkGetDeviceQueue(device, family, 0, queue)
        self._queue = queue[0]
        info = struct(
            "CommandPoolCreateInfo",
            flags=vulkan.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
            queueFamilyIndex=family,
        )
        self.pool = made("vkCreateCommandPool", device, info)
        timeline = struct(
            "SemaphoreTypeCreateInfo", semaphoreType=vulkan.VK_SEMAPHORE_TYPE_TIMELINE
        )
        self._semaphore = made(
            "vkCreateSemaphore", device, struct("SemaphoreCreateInfo", pNext=timeline)
        )
        self._open: Any = None
        # command buffers of each submission that is not yet made
        self._waiting: list[list[Any]] = [[]]
        self._spare: list[Any] = []
        # (number of its submission, command buffer) of copies; (number, end in the ring)
        self._used: deque[tuple[int, Any]] = deque()
        self._filled: deque[tuple[int, int]] = deque()
        self._head = self._tail = 0

    @property
    def next(self) -> int:
        """Number of the submission that ends what is added now."""
        return self.submitted + len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return self.done == self.submitted and self._waiting == [[]]

    def upload(self, buffer: Any, offset: int, data: Bytes) -> None:
        """Copy to a buffer; the data may change as soon as this returns."""
        for start in range(0, data.size, PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            at = self._room(piece.size)
            self.ring.host[at : at + piece.size] = piece
            self.copy(self.ring.buffer, at, buffer, offset + start, piece.size)
            self._filled.append((self.next, self._head))

    def download(self, buffer: Any, offset: int, data: Bytes) -> None:
        """Copy from a buffer and wait for it."""
        for start in range(0, data.size, PIECE_BYTES):
            n = min(PIECE_BYTES, data.size - start)
            at = self._room(n)
            self.copy(buffer, offset + start, self.ring.buffer, at, n)
            barrier(self._commands(), (COPIES,), HOST)
            self._filled.append((self.next, self._head))
            self.wait()
            data[start : start + n] = self.ring.host[at : at + n]

    def copy(self, src: Any, src_offset: int, dst: Any, dst_offset: int, n: int) -> None:
        """Copy bytes between two buffers, or between places of one that do not overlap."""
        commands = self._commands()
        barrier(commands, (COPIES, SHADERS), COPIES)
        region = struct("BufferCopy", srcOffset=src_offset, dstOffset=dst_offset, size=n)
        lib.vkCmdCopyBuffer(commands, src, dst, 1, region)

    def zero(self, buffer: Any, nbytes: int) -> None:
        """Fill a new buffer with zeros."""
        commands = self._commands()
        barrier(commands, (COPIES, SHADERS), COPIES)
        lib.vkCmdFillBuffer(commands, buffer, 0, nbytes, 0)

    def add(self, pieces: Sequence[Any]) -> int:
        """Add command buffers, each in a submission of its own; return the last one's number."""
        for i, commands in enumerate(pieces):
            if i:
                self._waiting.append([])
            self._end()
            self._waiting[-1].append(commands)
        return self.next

    def flush(self) -> None:
        """Hand over everything that was added."""
        self._end()
        batches, self._waiting = self._waiting, [[]]
        for batch in batches:
            if not batch:
                continue
            signal = struct(
                "TimelineSemaphoreSubmitInfo",
                signalSemaphoreValueCount=1,
                pSignalSemaphoreValues=[self.submitted + 1],
            )
            info = struct(
                "SubmitInfo",
                pNext=signal,
                commandBufferCount=len(batch),
                pCommandBuffers=batch,
                signalSemaphoreCount=1,
                pSignalSemaphores=[self._semaphore],
            )
            call("vkQueueSubmit", self._queue, 1, info, NULL)
            self.submitted += 1
            self.counts.submissions += 1

    def wait(self, number: int | None = None) -> None:
        """Wait for a submission, and so for all before it; None: for everything."""
        if number is None or number > self.submitted:
            self.flush()
            number = self.submitted
        while self.done < number:
            info = struct(
                "SemaphoreWaitInfo",
                semaphoreCount=1,
                pSemaphores=[self._semaphore],
                pValues=[number],
            )
            patient = (vulkan.VK_TIMEOUT,)
            result = call("vkWaitSemaphores", self.device, info, PATIENCE_NS, allowed=patient)
            if result == vulkan.VK_SUCCESS:
                self.done = number
        while self._used and self._used[0][0] <= self.done:
            self._spare.append(self._used.popleft()[1])
        while self._filled and self._filled[0][0] <= self.done:
            self._tail = self._filled.popleft()[1]

    def allocate(self, count: int) -> list[Any]:
        """Return new command buffers."""
        info = struct(
            "CommandBufferAllocateInfo",
            commandPool=self.pool,
            level=vulkan.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=count,
        )
        out = ffi.new("VkCommandBuffer[]", count)
        call("vkAllocateCommandBuffers", self.device, info, out)
        return list(out)

    def close(self) -> None:
        lib.vkDestroySemaphore(self.device, self._semaphore, NULL)
        lib.vkDestroyCommandPool(self.device, self.pool, NULL)

    def _commands(self) -> Any:
        """Return the command buffer that copies go to, begun."""
        if self._open is None:
            self._open = self._spare.pop() if self._spare else self.allocate(1)[0]
            begin(self._open)
            self._waiting[-1].append(self._open)
        return self._open

    def _end(self) -> None:
        if self._open is not None:
            call("vkEndCommandBuffer", self._open)
            self._used.append((self.next, self._open))
            self._open = None

    def _room(self, n: int) -> int:
        """Return where n bytes of the ring are free, waiting for older copies where it is full."""
        if self._head % RING_BYTES + n > RING_BYTES:
            self._head += RING_BYTES - self._head % RING_BYTES
        while self._head + n - self._tail > RING_BYTES:
            if not self._filled:
                self._tail = self._head
                break
            self.wait(self._filled[0][0])
        at = self._head % RING_BYTES
        self._head += n
        return at


def begin(commands: Any) -> None:
    """Begin a command buffer anew."""
    call("vkBeginCommandBuffer", commands, struct("CommandBufferBeginInfo"))


def barrier(commands: Any, before: Sequence[int], after: int) -> None:
    """Let a stage wait for all that stages did before, and see what they wrote."""
    memory = struct(
        "MemoryBarrier",
        srcAccessMask=sum(WRITES[stage] for stage in before),
        dstAccessMask=READS[after] | WRITES[after],
    )
    lib.vkCmdPipelineBarrier(commands, sum(before), after, 0, 1, memory, 0, NULL, 0, NULL)
