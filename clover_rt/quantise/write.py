"""One file of the result: source rows in, codes and scales out, a few megabytes at a time."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from clover_rt.errors import BadCheckpoint
from clover_rt.quantise.encode import Array, BadNumber, Encoder
from clover_rt.quantise.rules import Choice
from clover_rt.quantise.shards import Shard
from clover_rt.spec import Format

# source bytes that one piece of work reads: some hundred times what it costs to hand it over
SLICE_BYTES = 4 << 20
PART = ".part"

Told = Callable[[int], None]


class Writer:
    """Writes shards, with a few threads that encode."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "clover-quantise")
        self._encoders: dict[tuple[Format, int], Encoder] = {}

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._pool.shutdown(cancel_futures=True)

    def write(self, folder: Path, shard: Shard, on_bytes: Told) -> None:
        """Write a shard; it has its name only once it is whole and on the disk.

        on_bytes  is told the source bytes that were done since the last call
        Raises BadCheckpoint (CRT-1206) for a number that cannot be stored, or OSError.
        """
        path = folder / (shard.name + PART)
        digest = hashlib.sha256()
        with path.open("wb") as file:
            file.write(shard.header)
            for choice in shard.choices:
                for source in self._tensor(choice, file):
                    digest.update(source.data)
                    on_bytes(source.nbytes)
            file.seek(shard.digest_at)
            file.write(digest.hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        path.replace(folder / shard.name)
        sync(folder)

    def _tensor(self, choice: Choice, file: IO[bytes]) -> Iterator[Array]:
        """Write a tensor; yield the bytes of the source as they are done with."""
        if choice.format is None:
            for source in _slices(choice):
                file.write(source.data)
                yield source
                choice.view.file.release_array(source)
            return
        key = choice.format, choice.group
        if key not in self._encoders:
            self._encoders[key] = Encoder(*key)
        encode = self._encoders[key].encode
        # codes come first in the file; the scales of a tensor are small enough to wait
        scales = []
        for source, (codes, scale) in self._in_order(encode, _slices(choice), choice):
            file.write(codes.data)
            scales.append(scale)
            yield source.reshape(-1).view(np.uint8)
            choice.view.file.release_array(source)
        for scale in scales:
            file.write(scale.data)

    def _in_order(
        self,
        encode: Callable[[Array], tuple[Array, Array]],
        slices: Iterator[Array],
        choice: Choice,
    ) -> Iterator[tuple[Array, tuple[Array, Array]]]:
        """Yield (slice, its result) in order, with as many under way as keep the threads busy."""
        waiting: deque[tuple[Array, Future[tuple[Array, Array]]]] = deque()
        first = 0
        try:
            for source in islice(slices, 2 * self._threads):
                waiting.append((source, self._pool.submit(encode, source)))
            while waiting:
                source, future = waiting.popleft()
                yield source, future.result()
                first += source.size
                for following in islice(slices, 1):
                    waiting.append((following, self._pool.submit(encode, following)))
        except BadNumber as bad:
            raise _unstorable(choice, first + bad.at, bad.value) from None


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can do that."""
    # Windows opens no folders
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _slices(choice: Choice) -> Iterator[Array]:
    """Yield a tensor as rows [R, K] over the map; its bytes where it stays as it is."""
    array: Any = choice.view.array
    if choice.format is None:
        flat = array.reshape(-1).view(np.uint8)
        for lo in range(0, len(flat), SLICE_BYTES):
            yield flat[lo : lo + SLICE_BYTES]
        return
    rows = array.reshape(-1, array.shape[-1])
    step = max(1, SLICE_BYTES // (rows.shape[1] * rows.itemsize))
    for lo in range(0, len(rows), step):
        yield rows[lo : lo + step]


def _unstorable(choice: Choice, at: int, value: float) -> BadCheckpoint:
    index = [int(i) for i in np.unravel_index(at, choice.view.shape)]
    path = choice.view.file.path
    reason = "is too large for a float16 scale" if np.isfinite(value) else "cannot be quantised"
    return BadCheckpoint(
        what=f"a number of {path.name} cannot be stored in codes and a scale",
        evidence=f"{path}: tensor {choice.name!r}{index} is {value}, which {reason}",
        fix="check the checkpoint, or keep the tensor as it is with --keep 'NAME=bf16'",
        code="CRT-1206",
    )
