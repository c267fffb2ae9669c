"""A card, or the interpreter: memory as torch bytes, launches counted, errors told as ours."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.weak import TensorWeakRef

from clover_rt.backend import Buffer, Device, DeviceInfo, Kernel, Memory, Step, Usage
from clover_rt.spec import Precision, Signature, StepLayout
from clover_rt.spec.step import HEADER, VERSION
from clover_rt_cuda.cache import use_cache, use_own_folder
from clover_rt_cuda.card import Card, Outbox
from clover_rt_cuda.graphs import Graphs, Submission
from clover_rt_cuda.guard import FOR_CACHES, FOR_WEIGHTS, Guard, is_memory, no_room
from clover_rt_cuda.kernels import make_kernels
from clover_rt_cuda.launch import FUSED, Launch, Steps
from clover_rt_cuda.tuning import Tuning

Array = npt.NDArray[Any]

_OFFSET, _SEGMENT, _ = StepLayout().sections["segments"]
# words of a step table: where its segments start, and of each its size and its position
SEGMENTS, SEGMENT = _OFFSET // 4, _SEGMENT.itemsize // 4
COUNT, POSITION = HEADER.index("segments"), _SEGMENT.names.index("position")
VERSION_BYTES = 4


class TorchBuffer(Buffer):
    """Bytes of a torch device; `data` is uint8 [nbytes].

    is_table  it holds the table of a pass
    outbox    where those bytes wait to be copied to a card
    """

    def __init__(self, data: torch.Tensor, is_table: bool = False) -> None:
        self.data = data
        self.nbytes = data.numel()
        self.is_table = is_table
        self.outbox: Outbox | None = None


class CudaDevice(Device):
    """One card, with the edges of a pass in float32 and the KV cache in the precision's type.

    launches     kernels launched one by one since it was opened; those of a graph are not counted
    prefix       rows of the longest prefix in the table that was uploaded last
    has_graphs   passes are recorded once and replayed
    submitted    the operations of the launches that went to the card last, and `submitted_s` when;
                 for the message if it is lost
    overrides    environment variables that change what a driver or compiler does
    blocking     the one that makes each launch wait
    elsewhere    what runs the model where its kernels do not compile, as part of a sentence
    """

    alignment = 256
    has_graphs = True
    overrides: tuple[str, ...] = (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TRITON_CACHE_DIR",
        "TRITON_INTERPRET",
    )
    blocking = "CUDA_LAUNCH_BLOCKING"
    elsewhere = "use another backend: --backend vulkan or --backend cpu"

    def __init__(self, info: DeviceInfo) -> None:
        self.name = info.name
        self.is_interpreted = info.is_software
        self.arch = "interpreter" if self.is_interpreted else info.notes["arch"]
        about = {
            k: v for k, v in info.notes.items() if k not in ("engine", "arch", "chosen", "triton")
        }
        self.driver = ", ".join(f"{k} {v}" for k, v in about.items())
        self.torch = torch.device("cpu" if self.is_interpreted else info.id)
        self.launches = 0
        self.prefix = sys.maxsize
        self.submitted: Sequence[Signature] = ()
        self.submitted_s = 0.0
        self.graphs = Graphs()
        self._buffers: WeakSet[TorchBuffer] = WeakSet()
        self._weights: list[TensorWeakRef] = []
        self._has_new_weights = False
        self._compiled: set[tuple[Any, ...]] = set()
        if not self.is_interpreted:
            with Guard(self, "open"):
                self.card = Card(self.torch)
            use_cache(self.arch)
        self.kernels: Mapping[str, Kernel] = make_kernels(self)

    @cached_property
    def tuning(self) -> Tuning:
        """Tile sizes for this kind of card; BadInput where a table of them cannot be used."""
        return Tuning.of(self.arch)

    def alloc(self, nbytes: int, usage: Usage) -> TorchBuffer:
        data = self._zeros(nbytes, torch.uint8, f"{usage.value} buffer", FOR_CACHES)
        buffer = TorchBuffer(data, usage is Usage.PARAMS)
        if buffer.is_table and not self.is_interpreted:
            with Guard(self, "allocate"):
                buffer.outbox = Outbox(self.card, nbytes)
        self._buffers.add(buffer)
        return buffer

    def zeros(self, count: int, dtype: torch.dtype, tensor: str) -> torch.Tensor:
        """Return new zeroed memory of a kernel's own, which ends with it or with the device.

        OutOfMemory (CRT-3230) names the tensor and both numbers.
        """
        data = self._zeros(count, dtype, tensor, FOR_WEIGHTS)
        self._weights.append(TensorWeakRef(data))
        self._has_new_weights = not self.is_interpreted
        return data

    def _zeros(self, count: int, dtype: torch.dtype, tensor: str, remedies: str) -> torch.Tensor:
        with Guard(self, f"allocate {tensor}"):
            try:
                with self.ordered():
                    return torch.zeros(count, dtype=dtype, device=self.torch)
            except Exception as error:
                if not is_memory(error):
                    raise
                raise no_room(self, tensor, count * dtype.itemsize, remedies, error) from error

    def free(self, buffer: Buffer) -> None:
        own = _own(buffer)
        _drop(own.data)
        own.data = torch.zeros(0, dtype=torch.uint8)
        own.nbytes = 0
        own.outbox = None
        self._buffers.discard(own)

    def copy(self, dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, n: int) -> None:
        part = _own(src).data[src_offset : src_offset + n]
        with Guard(self, "copy"), self.ordered():
            _own(dst).data[dst_offset : dst_offset + n].copy_(part)

    def upload(self, dst: Buffer, offset: int, src: Array) -> None:
        own = _own(dst)
        target = own.data[offset : offset + src.nbytes]
        if own.is_table and offset == 0:
            self.prefix = longest_prefix(src)
        if own.outbox is None:
            self.fill(target, src)
            return
        with Guard(self, "upload"):
            own.outbox.send(target, np.ascontiguousarray(src).reshape(-1).view(np.uint8))

    def download(self, src: Buffer, offset: int, dst: Array) -> None:
        part = _own(src).data[offset : offset + dst.nbytes]
        target = torch.from_numpy(dst.reshape(-1).view(np.uint8))
        with Guard(self, "download"):
            with self.ordered():
                target.copy_(part, non_blocking=True)
            self._wait()

    def fill(self, target: torch.Tensor, source: Array) -> None:
        """Copy a host array into bytes of the device."""
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        if not data.flags.writeable:
            # torch takes no memory that it could not write, and files are mapped read-only
            data = data.copy()
        with Guard(self, "upload"), self.ordered():
            target.copy_(torch.from_numpy(data))

    def synchronize(self) -> None:
        with Guard(self, "synchronize"):
            self._wait()

    def memory(self) -> Memory:
        if self.is_interpreted:
            return Memory()
        with Guard(self, "ask for memory"):
            return self.card.memory()

    def dtypes(self, precision: Precision) -> tuple[str, str]:
        """Rows are float32 always; `fast` multiplies in bfloat16 and halves the KV cache."""
        return ("float32", "bfloat16" if precision is Precision.FAST else "float32")

    def capture(self, steps: Sequence[Step]) -> Step:
        """Return one step: a graph, recorded when it first runs; interpreted, the steps in order.

        Kernels that are not compiled yet are, when it first runs, with progress.
        """
        if self.is_interpreted:
            return super().capture(steps)
        return Submission(self, Steps(tuple(steps)))  # type: ignore[arg-type]

    def submit(self, launches: Sequence[Launch], run: Step) -> None:
        """Run what goes to the card at once; its launches name it, should the card be lost."""
        self.submitted, self.submitted_s = [n.sig for n in launches], time.perf_counter()
        with Guard(self, "submit"):
            run()

    def launch(
        self, sig: Signature, kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any
    ) -> None:
        """Launch a kernel of an op; a failure names op, shape and arch."""
        self.launches += 1
        self.submitted, self.submitted_s = (sig,), time.perf_counter()
        with Guard(self, "launch", sig), self.ordered():
            if self._has_new_weights:
                # what prepares a weight may compute with it on torch's own stream
                self.card.settle()
                self._has_new_weights = False
            kernel[grid](*args, **meta, **FUSED)

    def compile(self, launches: Sequence[Launch]) -> None:
        """Compile what is not compiled yet, told to `on_progress` as "compiling NAME"."""
        fresh = {n.program: n for n in launches if n.program not in self._compiled}
        for done, (program, launch) in enumerate(fresh.items()):
            self._tell(done, len(fresh), f"compiling {launch.kernel.__name__}")
            with Guard(self, "compile", launch.sig, compiles=True), self.ordered():
                _compile(launch)
            self._compiled.add(program)
        if fresh:
            self._tell(len(fresh), len(fresh), "compiling")

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Make every table empty meanwhile, so that nothing that runs changes a state."""
        tables = [buffer for buffer in self._buffers if buffer.outbox is not None]
        heads = [table.data[VERSION_BYTES : 4 * SEGMENTS] for table in tables]
        with Guard(self, "record"), self.ordered():
            kept = [head.clone() for head in heads]
            for head in heads:
                head.zero_()
        try:
            yield
        finally:
            with Guard(self, "record"), self.ordered():
                for head, own in zip(heads, kept, strict=True):
                    head.copy_(own)

    def ordered(self) -> AbstractContextManager[Any]:
        """Return a context whose copies and launches run one after the other."""
        return nullcontext() if self.is_interpreted else self.card.ordered()

    def close(self) -> None:
        """Free everything, though steps still hold it; none of them may run any more."""
        self.graphs.clear()
        for buffer in list(self._buffers):
            self.free(buffer)
        for held in self._weights:
            data = held()
            if data is not None:
                _drop(data)
        self._weights.clear()
        if not self.is_interpreted:
            # a card that is lost has said so before
            with suppress(RuntimeError):
                self.card.release()

    def _wait(self) -> None:
        if not self.is_interpreted:
            self.card.wait()

    def _tell(self, done: int, total: int, what: str) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total, what)


def longest_prefix(table: Array) -> int:
    """Return the largest position of a segment of a step table; bytes that are none have no bound.

    A buffer may hold its table further on, as only its user knows.
    """
    words = np.ascontiguousarray(table).reshape(-1).view(np.int32)
    if words[0] != VERSION:
        return sys.maxsize
    positions = words[SEGMENTS + POSITION :: SEGMENT][: max(0, int(words[COUNT]))]
    return int(positions.max(initial=0))


def _drop(data: torch.Tensor) -> None:
    """Free memory that steps still hold views of; the host's goes with them where numpy has it."""
    storage = data.untyped_storage()
    if storage.resizable():
        storage.resize_(0)


def _compile(launch: Launch) -> None:
    def compiled() -> None:
        launch.kernel.warmup(*launch.args, grid=launch.grid, **launch.meta, **FUSED)

    try:
        compiled()
    except OSError as error:
        # the folder of the cache is full, or gone
        use_own_folder(error)
        compiled()


def _own(buffer: Buffer) -> TorchBuffer:
    assert isinstance(buffer, TorchBuffer), "a buffer of another device was passed to cuda"
    return buffer
