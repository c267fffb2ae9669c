"""Generated kernels in front of the numpy ones, which take what the generated ones do not."""

from __future__ import annotations

from collections.abc import Mapping

from clover_rt.backend import Kernel, Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Numerics, Signature
from clover_rt_cpu.jit.kernel import JitKernel


class Preferred(Kernel):
    """The generated kernel where it fits the signature, else the other.

    Which one it is depends on what is the same for every table and bucket, so weights are prepared
    for the right one.
    """

    def __init__(self, first: JitKernel, second: Kernel) -> None:
        self.first = first
        self.second = second

    def kernel(self, sig: Signature) -> Kernel:
        return self.second if self.first.misfit(sig) else self.first

    def supports(self, sig: Signature) -> str:
        return self.first.denial(sig) or self.kernel(sig).supports(sig)

    def numerics(self, sig: Signature) -> Numerics:
        return self.kernel(sig).numerics(sig)

    def row_invariant(self, sig: Signature) -> bool:
        return self.kernel(sig).row_invariant(sig)

    def scratch(self, sig: Signature) -> int:
        return self.kernel(sig).scratch(sig)

    def prepared_bytes(self, sig: Signature) -> int:
        return self.kernel(sig).prepared_bytes(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return self.kernel(sig).prepare(sig, weights)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        return self.kernel(sig).bind(sig, operands, prepared, scratch)


def preferred(first: Mapping[str, JitKernel], second: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """Return every kernel of either, the first ones preferred."""
    return {
        name: Preferred(first[name], kernel) if name in first else kernel
        for name, kernel in second.items()
    }
