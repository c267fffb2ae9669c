"""The Kompute driver: the same SPIR-V through the package `kp`, one stage of a pass at a time.

What kp 0.9 leaves out shapes it:

- Its sequences have no barrier between dispatches. So each stage, dispatches that need not wait for
  each other, is a sequence of its own, and is waited for.
- A tensor is bound whole. Where a binding starts is added to the word of the push constants that
  tells the shader.
- A tensor is there twice, on the device and on the host, and is copied whole. Which of the two is
  behind is kept, and it is brought up only when it is needed.
- Sizes are 32 bits, and wrap. No feature is enabled, and nothing is said where an allocation fails
  or a device is lost. Limits are lower here than the card's, memory is asked for before it is
  taken, and a number that goes to the device must come back with each copy to the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary, finalize

import kp
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
from clover_rt_vulkan.driver.cards import Card, budgets
from clover_rt_vulkan.driver.order import stages
from clover_rt_vulkan.driver.vk import NULL

# kp counts bytes in 32 bits; a tensor is some bytes longer than its buffer
MOST_BYTES = (1 << 32) - 64
# with no push or specialisation constants kp takes floats unless it is shown the type
NO_WORDS = np.zeros(0, np.uint32)
# the memory of a tensor and of its copy
OWN = vulkan.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
SEEN = vulkan.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vulkan.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
# SPIR-V: where instructions start, and those that give a constant its id and its value
CODE_AT, DECORATE, SPEC_CONSTANT, SPEC_ID = 5, 71, 50, 1


class Memory:
    """A tensor and its copy on the host.

    host           the copy's bytes
    is_host_new    the copy was written, and the device's memory not yet
    is_device_new  the device's memory was written, and the copy not yet
    """

    __slots__ = ("__weakref__", "down", "host", "is_device_new", "is_host_new", "tensor", "up")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.host: Bytes = tensor.data().view(np.uint8)
        self.is_host_new = True
        self.is_device_new = False
        # the sequences that copy it, recorded when they are first needed
        self.up: Any = None
        self.down: Any = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A shader with its constants; kp compiles it anew for each set of tensors."""

    code: bytes
    digest: bytes
    shape: Shape


class Bound:
    """A compiled shader, bound to tensors that live as long."""

    __slots__ = ("__weakref__", "algorithm", "memories")

    def __init__(self, algorithm: Any, memories: tuple[Memory, ...]) -> None:
        self.algorithm = algorithm
        self.memories = memories


@dataclass(frozen=True, slots=True)
class Recording:
    """A pass: one sequence a stage; and what it reads and writes."""

    sequences: tuple[Any, ...]
    memories: tuple[Memory, ...]
    written: tuple[Memory, ...]
    bound: tuple[Bound, ...]


class KomputeDriver(Driver):
    """One card, opened through kp.

    instance  of Vulkan, which listed the card and tells of its memory; destroyed at the end
    index     the card's place among those that the loader lists
    """

    def __init__(self, instance: Any, card: Card, index: int) -> None:
        self.card = card
        most = min(card.limits.binding, card.limits.allocation, MOST_BYTES)
        self.limits = replace(card.limits, binding=most, allocation=most)
        self.features = frozenset()
        self.counts = Counts()
        self.used = 0
        self._instance = instance
        with _doing("kp opens the device"):
            self._manager = kp.Manager(index, [card.family])
            found = self._manager.get_device_properties()["device_name"]
        if found != card.name:
            cause = f"its device {index} is {found}, the loader's is {card.name}"
            raise DriverFailure(Trouble.OTHER, "kp opens the device", cause)
        self._properties = ffi.new("VkPhysicalDeviceMemoryProperties*")
        lib.vkGetPhysicalDeviceMemoryProperties(card.handle, self._properties)
        self._own = self._heap_of(OWN)
        self._seen = self._heap_of(SEEN)
        self._bound: WeakValueDictionary[Any, Bound] = WeakValueDictionary()
        self._pulse = self.buffer(16)
        self._beat = 0

    def buffer(self, nbytes: int) -> Memory:
        size = -(-nbytes // 16) * 16 + 16
        if size > self.limits.allocation:
            cause = f"{size} bytes, and kp takes at most {self.limits.allocation} here"
            raise DriverFailure(Trouble.MEMORY, "kp makes a tensor", cause)
        left = self._left()
        if size > left:
            cause = f"a tensor and its copy of {size} bytes each are needed, {left} bytes are left"
            raise DriverFailure(Trouble.MEMORY, "kp makes a tensor", cause)
        with _doing("kp makes a tensor"):
            memory = Memory(self._manager.tensor_t(np.zeros(size // 4, np.uint32)))
        self.used += size
        finalize(memory, self._let_go, size).atexit = False
        return memory

    def memory(self) -> tuple[int, int]:
        total = self.card.memory_bytes
        return total, max(min(self._left(), total - self.used), 0)

    def upload(self, memory: Memory, offset: int, data: Bytes) -> None:
        self._to_host(memory)
        memory.host[offset : offset + data.size] = data
        memory.is_host_new = True

    def download(self, memory: Memory, offset: int, data: Bytes) -> None:
        self._to_host(memory)
        data[:] = memory.host[offset : offset + data.size]

    def copy(self, dst: Memory, dst_offset: int, src: Memory, src_offset: int, n: int) -> None:
        self._to_host(src)
        self.upload(dst, dst_offset, src.host[src_offset : src_offset + n].copy())

    def pipeline(self, code: bytes, shape: Shape, constants: Mapping[int, int]) -> Pipeline:
        special = specialised(code, constants)
        return Pipeline(special, hashlib.sha256(special).digest(), shape)

    def record(self, dispatches: Sequence[Dispatch], layers: Sequence[int] = (0,)) -> Recording:
        """Return a sequence for each stage, wherever layers begin; here shaders are compiled."""
        starts = [0, *stages(dispatches), len(dispatches)]
        sequences, bound = [], []
        for start, end in pairwise(starts):
            # a grid without groups does nothing; kp would take the first tensor's size for it
            live = [d for d in dispatches[start:end] if all(d.groups)]
            if not live:
                continue
            with _doing(f"kp records {live[-1].op}"):
                sequence = self._manager.sequence()
                for dispatch in live:
                    found = self._bind(dispatch)
                    bound.append(found)
                    sequence.record(kp.OpAlgoDispatch(found.algorithm, _push(dispatch)))
            sequences.append(sequence)
        bindings = [b for d in dispatches for b in d.bindings]
        memories = {id(b.memory): b.memory for b in bindings}
        written = {id(b.memory): b.memory for b in bindings if b.is_written}
        return Recording(
            tuple(sequences), tuple(memories.values()), tuple(written.values()), tuple(bound)
        )

    def submit(self, recording: Recording) -> None:
        """Run a recording, stage by stage, and wait for it."""
        for memory in recording.memories:
            self._to_device(memory)
        with _doing("kp runs a pass"):
            for sequence in recording.sequences:
                sequence.eval()
        self.counts.submissions += len(recording.sequences)
        self.counts.passes += 1
        self.counts.cut_passes += len(recording.sequences) > 1
        for memory in recording.written:
            memory.is_device_new = True

    def wait(self) -> None:
        """Return: everything was waited for where it was submitted."""

    def times(self, recording: Recording) -> list[float]:
        # kp's timestamps are written into a query pool that it never resets
        return []

    def close(self) -> None:
        self._manager.destroy()
        lib.vkDestroyInstance(self._instance, NULL)

    def _bind(self, dispatch: Dispatch) -> Bound:
        """Return a dispatch's shader, compiled for its tensors."""
        pipeline: Pipeline = dispatch.pipeline
        memories = tuple(b.memory for b in dispatch.bindings)
        key = (pipeline.digest, dispatch.groups, tuple(map(id, memories)))
        bound = self._bound.get(key)
        if bound is None:
            with _doing(dispatch.op, Trouble.COMPILE):
                algorithm = self._manager.algorithm(
                    [m.tensor for m in memories],
                    pipeline.code,
                    dispatch.groups,
                    NO_WORDS,
                    np.zeros(pipeline.shape.push // 4, np.uint32),
                )
            bound = self._bound[key] = Bound(algorithm, memories)
        return bound

    def _to_device(self, memory: Memory) -> None:
        if memory.is_host_new:
            with _doing("kp copies to the device"):
                if memory.up is None:
                    memory.up = self._manager.sequence()
                    memory.up.record(kp.OpTensorSyncDevice([memory.tensor]))
                memory.up.eval()
            memory.is_host_new = False
            self.counts.submissions += 1

    def _to_host(self, memory: Memory) -> None:
        """Bring the copy on the host up, and see that the device still answers."""
        if not memory.is_device_new:
            return
        pulse = self._pulse
        self._beat = (self._beat + 1) % 256
        pulse.host[0] = self._beat
        pulse.is_host_new = True
        self._to_device(pulse)
        pulse.host[0] = ~pulse.host[0]
        with _doing("kp copies to the host"):
            if memory.down is None:
                memory.down = self._manager.sequence()
                memory.down.record(kp.OpTensorSyncLocal([memory.tensor, pulse.tensor]))
            memory.down.eval()
        if pulse.host[0] != self._beat:
            cause = "a number that went to the device did not come back"
            raise DriverFailure(Trouble.LOST, "kp copies to the host", cause)
        memory.is_device_new = False
        self.counts.submissions += 1

    def _left(self) -> int:
        """Return the bytes of the largest tensor that there is room for, on both sides."""
        told = budgets(self.card)
        if self._own == self._seen:
            return (told[self._own] if told else self._heap(self._own) - 2 * self.used) // 2
        return min(told[i] if told else self._heap(i) - self.used for i in (self._own, self._seen))

    def _heap(self, index: int) -> int:
        return int(self._properties.memoryHeaps[index].size)

    def _heap_of(self, flags: int) -> int:
        """Return the heap of the first type of memory with these flags, which is what kp takes."""
        types = [self._properties.memoryTypes[i] for i in range(self._properties.memoryTypeCount)]
        return next(int(t.heapIndex) for t in types if t.propertyFlags & flags == flags)

    def _let_go(self, size: int) -> None:
        self.used -= size


def specialised(code: bytes, constants: Mapping[int, int]) -> bytes:
    """Return SPIR-V whose specialisation constants have these values, by their ids.

    kp numbers constants from 0 and has no defaults, so they are written into the code.
    """
    words = np.frombuffer(code, "<u4").copy()
    ids: dict[int, int] = {}
    at = CODE_AT
    while at < len(words):
        op, length = int(words[at]) & 0xFFFF, int(words[at]) >> 16
        if op == DECORATE and words[at + 2] == SPEC_ID:
            ids[int(words[at + 1])] = int(words[at + 3])
        elif op == SPEC_CONSTANT:
            key = ids[int(words[at + 2])]
            words[at + 3] = constants.get(key, words[at + 3])
        at += length
    return words.tobytes()


def _push(dispatch: Dispatch) -> Any:
    """Return the push constants: the first words say where each tensor starts in its buffer."""
    words = np.frombuffer(dispatch.push, np.uint32).copy()
    for i, binding in enumerate(dispatch.bindings):
        words[i] += binding.offset // 4
    return words


@contextmanager
def _doing(doing: str, otherwise: Trouble = Trouble.OTHER) -> Iterator[None]:
    """Tell what kp raises as a driver's failure."""
    try:
        yield
    except RuntimeError as error:
        told = str(error)
        kinds = {"DeviceLost": Trouble.LOST, "OutOf": Trouble.MEMORY}
        trouble = next((kind for word, kind in kinds.items() if word in told), otherwise)
        raise DriverFailure(trouble, doing, told) from error
