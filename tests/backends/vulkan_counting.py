"""A Vulkan device whose shaders note every word that they load or store of some buffers.

The notes are put into the SPIR-V that ships, so that what is counted is what runs: behind each
access of a buffer a record of the group of work-items, the buffer and the word goes to one more
buffer, at a place that an integer atomic gives. Dispatches run one by one.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt_vulkan.device import Launches, VulkanBuffer, VulkanDevice
from clover_rt_vulkan.driver import Binding, Dispatch, Shape
from clover_rt_vulkan.library import Shader

# records of a dispatch; those behind the last overwrite the first, and the count tells
MOST = 1 << 22
# words of the head, which has the count, and of a record, of which the last is left
HEAD, RECORD = 4, 4
# groups along each axis that a record has room for
MOST_GROUPS = (1 << 12, 1 << 12, 1 << 8)
WORD = 4

INT, VECTOR, RUNTIME_ARRAY, STRUCT, POINTER = 21, 23, 29, 30, 32
CONSTANT, FUNCTION, VARIABLE, LOAD, STORE, ACCESS_CHAIN = 43, 54, 59, 61, 62, 65
DECORATE, MEMBER_DECORATE, EXTRACT = 71, 72, 81
ADD, MULTIPLY, SHIFT, OR, AND, ATOMIC_ADD = 128, 132, 196, 197, 199, 234
# atomics that take a pointer and return what was there
ATOMICS = range(229, 243)
# other ways to memory: copies, and chains that promise to stay inside
UNSEEN = (63, 64, 66)
BLOCK, ARRAY_STRIDE, BUILT_IN, BINDING, DESCRIPTOR_SET, OFFSET = 2, 6, 11, 33, 34, 35
WORKGROUP_ID, STORAGE_BUFFER, DEVICE_SCOPE = 26, 12, 1
Instruction = tuple[int, tuple[int, ...]]


@dataclass
class Moved:
    """Bytes of an operand that a dispatch moved.

    asked  by its work-items, one by one
    moved  by its groups: what the items of one ask for twice is moved once
    """

    asked: int = 0
    moved: int = 0

    def add(self, other: Moved) -> None:
        self.asked += other.asked
        self.moved += other.moved


Counts = defaultdict[tuple[str, str], Moved]
"""What passes moved, by shader and by what the memory is for."""


@dataclass(frozen=True)
class Unmade:
    """A shader with its constants, to be made for the buffers that are counted."""

    shader: Shader
    constants: Mapping[int, int]


class CountingDevice(VulkanDevice):
    """A device that counts, over the driver of an opened one.

    is_counted  which memory is counted, by what it is for
    counts      what was counted
    routes      the experts that each dispatch which routes rows chose, rows past the table too
    """

    def __init__(self, opened: VulkanDevice, is_counted: Callable[[str], bool]) -> None:
        self.named: dict[int, tuple[Any, str]] = {}
        super().__init__(opened.name, opened.driver)
        self.is_counted = is_counted
        self.counts = Counts(Moved)
        self.routes: list[npt.NDArray[np.int32]] = []
        self.records = self.allocate(WORD * (HEAD + RECORD * MOST), "records")

    def allocate(self, nbytes: int, what: str) -> VulkanBuffer:
        buffer = super().allocate(nbytes, what)
        self.name_memory(buffer, what)
        return buffer

    def name_memory(self, buffer: Any, what: str) -> None:
        # the memory is kept, so that its id stays its own
        self.named[id(buffer.memory)] = (buffer.memory, what)

    def pipeline(self, shader: Shader, constants: dict[int, int]) -> Unmade:
        return Unmade(shader, constants)

    def submit(self, launches: Launches) -> None:
        for dispatch in launches.dispatches:
            self._run(dispatch)

    def _run(self, dispatch: Dispatch) -> None:
        shader, constants = dispatch.pipeline.shader, dispatch.pipeline.constants
        assert all(g <= m for g, m in zip(dispatch.groups, MOST_GROUPS, strict=True))
        names = [self.named[id(b.memory)][1] for b in dispatch.bindings]
        counted = {i: name for i, name in enumerate(names) if self.is_counted(name)}
        at = len(names)
        code = noting(self.library.code(shader.name), counted, at)
        shape = Shape(at + 1, WORD * len(shader.push))
        made = self.driver.pipeline(code, shape, constants)
        records = Binding(self.records.memory, 0, self.records.nbytes, True)
        self.upload(self.records, 0, np.zeros(HEAD, np.uint32))
        bindings = (*dispatch.bindings, records)
        one = Dispatch(dispatch.op, made, dispatch.groups, bindings, dispatch.push)
        self.driver.submit(self.driver.record([one]))
        for binding, moved in self._moved().items():
            self.counts[shader.name, counted[binding]].add(moved)
        if "ids" in shader.written:
            self.routes.append(self._words(dispatch, shader.buffers.index("ids")))

    def _moved(self) -> dict[int, Moved]:
        """Return what the records of the last dispatch say, by binding."""
        number = int(self._words_of(self.records, 0, 1)[0])
        assert number <= MOST, f"{number} records, there is room for {MOST}"
        records = self._words_of(self.records, WORD * HEAD, RECORD * number)
        group, kind, at = records.reshape(-1, RECORD).astype(np.uint64).T[:3]
        words, access = kind & np.uint64(7), kind >> np.uint64(3)
        out: dict[int, Moved] = defaultdict(Moved)
        for each in np.unique(access):
            keys = []
            for i in range(4):
                of = (access == each) & (words > i)
                keys.append(group[of] << np.uint64(32) | at[of] + np.uint64(i))
            asked = sum(map(len, keys))
            moved = len(np.unique(np.concatenate(keys)))
            out[int(each) >> 1].add(Moved(WORD * asked, WORD * moved))
        return out

    def _words(self, dispatch: Dispatch, index: int) -> npt.NDArray[np.int32]:
        """Return the words of a binding from where its tensor starts."""
        binding = dispatch.bindings[index]
        start = binding.offset + WORD * struct.unpack_from("<I", dispatch.push, WORD * index)[0]
        buffer = VulkanBuffer(binding.offset + binding.nbytes, binding.memory)
        return self._words_of(buffer, start, (buffer.nbytes - start) // WORD).view(np.int32)

    def _words_of(self, buffer: VulkanBuffer, start: int, count: int) -> npt.NDArray[np.uint32]:
        out = np.empty(count, np.uint32)
        if count:
            self.download(buffer, start, out)
        return out


class Noted:
    """A module that is being given notes: ids, types and constants that they need."""

    def __init__(self, code: bytes, counted: Collection[int], at: int) -> None:
        words = struct.unpack(f"<{len(code) // WORD}I", code)
        self.head, self.bound = words[:5], words[3]
        self.body = list(instructions(words))
        self.constants: dict[int, int] = {}
        self.types = {o[0]: (op, o[1:]) for op, o in self.body if INT <= op <= POINTER}
        decorated = {(o[0], o[1]): o[2:] for op, o in self.body if op == DECORATE}
        self.variables = {o[1]: (o[0], o[2]) for op, o in self.body if op == VARIABLE}
        self.uint = next(i for i, t in self.types.items() if t == (INT, (32, 0)))
        groups = [v for v in self.variables if decorated.get((v, BUILT_IN)) == (WORKGROUP_ID,)]
        # a shader that runs as one group need not ask which it is
        self.group = groups[0] if groups else None
        self.pointer, self.records, self.array = self.id(), self.id(), self.id()
        self.struct, self.whole = self.id(), self.id()
        self.at = at
        # (binding, words of an element) of the counted variables
        self.counted: dict[int, tuple[int, int]] = {}
        for variable, (kind, storage) in self.variables.items():
            binding = decorated.get((variable, BINDING), (-1,))[0]
            if storage == STORAGE_BUFFER and binding in counted:
                block = self.types[kind][1][1]
                element = self.types[self.types[self.types[block][1][0]][1][0]]
                self.counted[variable] = (binding, element[1][1] if element[0] == VECTOR else 1)

    def id(self) -> int:
        self.bound += 1
        return self.bound - 1

    def constant(self, value: int) -> int:
        if value not in self.constants:
            self.constants[value] = self.id()
        return self.constants[value]

    def decorations(self) -> list[Instruction]:
        return [
            (DECORATE, (self.array, ARRAY_STRIDE, WORD)),
            (MEMBER_DECORATE, (self.struct, 0, OFFSET, 0)),
            (DECORATE, (self.struct, BLOCK)),
            (DECORATE, (self.records, DESCRIPTOR_SET, 0)),
            (DECORATE, (self.records, BINDING, self.at)),
        ]

    def declarations(self) -> list[Instruction]:
        return [
            (RUNTIME_ARRAY, (self.array, self.uint)),
            (STRUCT, (self.struct, self.array)),
            (POINTER, (self.whole, STORAGE_BUFFER, self.struct)),
            (POINTER, (self.pointer, STORAGE_BUFFER, self.uint)),
            (VARIABLE, (self.whole, self.records, STORAGE_BUFFER)),
            *((CONSTANT, (self.uint, i, value)) for value, i in self.constants.items()),
        ]

    def note(self, chain: tuple[int, ...], is_store: bool) -> list[Instruction]:
        """Return what notes an access through a chain: variable, member, index, component."""

        def made(op: int, *operands: int) -> int:
            result = self.id()
            out.append((op, (self.uint, result, *operands)))
            return result

        def pointer(place: int) -> int:
            result = self.id()
            out.append(
                (ACCESS_CHAIN, (self.pointer, result, self.records, self.constant(0), place))
            )
            return result

        out: list[Instruction] = []
        binding, width = self.counted[chain[0]]
        words = width if len(chain) == 3 else 1
        place = made(MULTIPLY, chain[2], self.constant(width))
        if len(chain) == 4:
            place = made(ADD, place, chain[3])
        one, none = self.constant(1), self.constant(0)
        packed = none
        if self.group is not None:
            group = self.id()
            three = self.types[self.variables[self.group][0]][1][1]
            out.append((LOAD, (three, group, self.group)))
            x, y, z = (made(EXTRACT, group, axis) for axis in range(3))
            packed = made(OR, x, made(SHIFT, y, self.constant(12)))
            packed = made(OR, packed, made(SHIFT, z, self.constant(24)))
        count = pointer(none)
        number = made(ATOMIC_ADD, count, self.constant(DEVICE_SCOPE), none, one)
        record = made(SHIFT, made(AND, number, self.constant(MOST - 1)), self.constant(2))
        kind = self.constant(binding << 4 | is_store << 3 | words)
        for i, value in enumerate((packed, kind, place)):
            to = pointer(made(ADD, record, self.constant(HEAD + i)))
            out.append((STORE, (to, value)))
        return out

    def code(self) -> bytes:
        """Return the module with a note behind each access."""
        chains: dict[int, tuple[int, ...]] = {}
        body: list[Instruction] = []
        for op, operands in self.body:
            assert op not in UNSEEN, "an access that would not be counted"
            body.append((op, operands))
            if op == ACCESS_CHAIN and operands[2] in self.counted:
                chains[operands[1]] = operands[2:]
            elif op == LOAD and operands[2] in chains:
                body += self.note(chains[operands[2]], False)
            elif op == STORE and operands[0] in chains:
                body += self.note(chains[operands[0]], True)
            elif op in ATOMICS and operands[2] in chains:
                body += self.note(chains[operands[2]], False)
                body += self.note(chains[operands[2]], True)
        first = next(i for i, (op, _) in enumerate(body) if op == DECORATE)
        function = next(i for i, (op, _) in enumerate(body) if op == FUNCTION)
        body[function:function] = self.declarations()
        body[first:first] = self.decorations()
        words = [*self.head[:3], self.bound, self.head[4]]
        for op, operands in body:
            words += [(len(operands) + 1) << 16 | op, *operands]
        return struct.pack(f"<{len(words)}I", *words)


def noting(code: bytes, counted: Collection[int], at: int) -> bytes:
    """Return SPIR-V that notes the accesses of some bindings in the buffer of binding `at`."""
    return Noted(code, counted, at).code() if counted else code


def instructions(words: Sequence[int]) -> Iterator[Instruction]:
    """Yield (opcode, operand words)."""
    at = 5
    while at < len(words):
        count = words[at] >> 16
        yield words[at] & 0xFFFF, tuple(words[at + 1 : at + count])
        at += count
