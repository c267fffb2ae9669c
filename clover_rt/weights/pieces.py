"""Pieces of a logical weight: views made when they are asked for, and letting go of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import overload

from clover_rt.spec import Format, Weight
from clover_rt.weights.packed import View
from clover_rt.weights.tensor_file import Array, TensorFile


def second_axis(weight: Weight, rows: slice) -> Weight:
    """Return a part of the second axis of a weight [E, N, K]; a view, nothing is copied."""
    codes, scale, zero = (
        None if array is None else array[:, rows]
        for array in (weight.codes, weight.scale, weight.zero)
    )
    assert codes is not None
    shape = (*codes.shape[:2], weight.shape[-1])
    return Weight(weight.format, shape, codes, scale, zero, weight.group)


class SplitExperts(Sequence[Weight]):
    """One projection of every expert, stored one tensor an expert: pieces [1, N, K].

    A piece is built when it is indexed, because a release has about a hundred thousand. Experts
    of different float types become float32, expert by expert.
    """

    def __init__(self, views: Sequence[View]) -> None:
        """views holds each expert's tensor [N, K] in order; every type must be readable.

        Quantised experts are all of one format and group.
        """
        formats = {view.format for view in views}
        first = views[0].format
        self._views = views
        self.format = first if len(formats) == 1 and first is not None else Format.F32

    def __len__(self) -> int:
        return len(self._views)

    @overload
    def __getitem__(self, index: int) -> Weight: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Weight]: ...

    def __getitem__(self, index: int | slice) -> Weight | Sequence[Weight]:
        if isinstance(index, slice):
            return [self._piece(view) for view in self._views[index]]
        return self._piece(self._views[index])

    def _piece(self, view: View) -> Weight:
        weight = view.weight.stacked()
        if weight.format is self.format:
            return weight
        codes = weight.codes.astype(self.format.codes_dtype)
        return Weight(self.format, weight.shape, codes)


class Releaser:
    """Lets go of the mapped memory under a piece; see `HostWeight.release`."""

    def __init__(self, files: Iterable[TensorFile]) -> None:
        self._files = sorted(files, key=lambda file: file.address)
        self._addresses = [file.address for file in self._files]

    def __call__(self, piece: Weight) -> None:
        """Drop the pages of a piece; one that lies in no file is left alone."""
        for array in (piece.codes, piece.scale, piece.zero):
            if array is not None and array.size:
                self._drop(array)

    def _drop(self, array: Array) -> None:
        address = array.__array_interface__["data"][0]
        i = bisect_right(self._addresses, address) - 1
        if i < 0:
            return
        file = self._files[i]
        start = address - file.address
        # rows may lie apart: the span reaches from the first byte to the last
        steps = zip(array.shape, array.strides, strict=True)
        span = sum((n - 1) * stride for n, stride in steps) + array.itemsize
        if start + span <= file.nbytes:
            file.release(start, start + span)
