"""A result read back and held against its source: relative errors, and what must not be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clover_rt.errors import BadCheckpoint
from clover_rt.quantise.encode import Array, floats
from clover_rt.quantise.rules import Choice
from clover_rt.spec import Format, Weight
from clover_rt.weights import Checkpoint, View, check_scales
from clover_rt.weights.packed import PackedView
from clover_rt.weights.tensor_file import TensorView

# numbers that are decoded at a time
BLOCK = 1 << 20
# what plain rounding leaves of a group at most, as a share of its extreme: half a step, and at the
# end of the range of q4, where -8 has no positive twin, a whole one
STEPS = {Format.Q8: 0.5 / 127, Format.Q4: 1 / 8}
# a float16 scale is off by a part in 2048, and by more where it is subnormal
SLACK = 1.01
SUBNORMAL = 2.0**-24


@dataclass
class Sums:
    """Squares of the errors and of the source's numbers."""

    error: float = 0.0
    size: float = 0.0

    def add(self, other: Sums) -> None:
        self.error += other.error
        self.size += other.size

    @property
    def relative(self) -> float:
        """Return the error relative to the numbers, both as roots of sums of squares."""
        return float(np.sqrt(self.error / self.size)) if self.size else 0.0


def verify(
    folder: Path, choices: Sequence[Choice], threads: int, on_bytes: Callable[[int], None]
) -> dict[str, Any]:
    """Return relative errors by class of tensor and format, and the worst tensor.

    folder    the result, with its index and config.json
    on_bytes  is told the source bytes that were done since the last call
    Raises BadCheckpoint: CRT-1220 a tensor differs from its source by more than rounding explains,
    and what opening a checkpoint raises.
    """
    made = Checkpoint.open(folder)
    check_scales(made.tensors)
    classes: dict[tuple[str, str], Sums] = {}
    worst = ("", 0.0)
    with ThreadPoolExecutor(threads, "clover-verify") as pool:
        for choice in choices:
            found = _tensor(choice, made.tensors[choice.name], pool)
            on_bytes(choice.view.nbytes)
            if choice.format is None:
                continue
            classes.setdefault((choice.kind, choice.format.value), Sums()).add(found)
            if found.relative > worst[1] or not worst[0]:
                worst = (choice.name, found.relative)
    return {
        "classes": [
            {"class": name, "format": form, "relative_error": sums.relative}
            for (name, form), sums in classes.items()
        ],
        "worst": {"tensor": worst[0], "relative_error": worst[1]} if worst[0] else None,
    }


def _tensor(choice: Choice, made: View, pool: ThreadPoolExecutor) -> Sums:
    if isinstance(made, TensorView):
        _compare(choice, made)
        return Sums()
    k, weight = choice.view.shape[-1], made.weight
    source = choice.view.array.reshape(-1, k)
    codes = weight.codes.reshape(len(source), -1)
    assert weight.scale is not None
    scale = weight.scale.reshape(len(source), -1)
    step = max(1, BLOCK // k)

    def compare(lo: int) -> Sums:
        part = slice(lo, min(lo + step, len(source)))
        shape = (part.stop - lo, k)
        read = Weight(weight.format, shape, codes[part], scale[part], None, weight.group)
        sums = _part(choice, made, floats(source[part]), read, lo)
        choice.view.file.release_array(source[part])
        made.file.release_array(codes[part])
        return sums

    whole = Sums()
    for sums in pool.map(compare, range(0, len(source), step)):
        whole.add(sums)
    made.file.release_array(scale)
    return whole


def _compare(choice: Choice, made: TensorView) -> None:
    """Raise unless a tensor that stays as it is has the same bytes."""
    a, b = (view.array.reshape(-1).view(np.uint8) for view in (choice.view, made))
    for lo in range(0, len(a), BLOCK):
        if not np.array_equal(a[lo : lo + BLOCK], b[lo : lo + BLOCK]):
            raise _damaged(choice, made, "is kept as it is, but its bytes differ")
        choice.view.file.release_array(a[lo : lo + BLOCK])
        made.file.release_array(b[lo : lo + BLOCK])


def _part(choice: Choice, made: PackedView, wanted: Array, read: Weight, row: int) -> Sums:
    """Return the sums of some rows, each group of which must be as near as rounding brings it."""
    groups = (len(wanted), -1, read.group)
    squares = np.square(read.values(np.float32) - wanted).reshape(groups).sum(-1)
    extreme = np.abs(wanted).reshape(groups).max(-1)
    step = extreme * STEPS[read.format] * SLACK + SUBNORMAL * 127
    over = squares > read.group * np.square(step)
    if over.any():
        r, g = (int(i[0]) for i in np.nonzero(over))
        text = f"row {row + r}, group {g} is off by more than a step of its scale"
        raise _damaged(choice, made, text)
    return Sums(
        float(squares.sum(dtype=np.float64)), float(np.square(wanted).sum(dtype=np.float64))
    )


def _damaged(choice: Choice, made: View, text: str) -> BadCheckpoint:
    return BadCheckpoint(
        what="the result is not what was written",
        evidence=f"{made.file.path}: tensor {choice.name!r} {text}",
        fix="check the disk and the memory of the machine, remove the folder, and quantise again",
        code="CRT-1220",
    )
