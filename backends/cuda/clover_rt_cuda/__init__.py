"""The cuda backend: Triton kernels on torch tensors."""

from __future__ import annotations

from clover_rt.backend import Backend
from clover_rt.hookspecs import hookimpl


@hookimpl
def clover_rt_backends() -> list[Backend]:
    """Return the cuda backend; torch and triton are loaded by its probe and its devices only."""
    from clover_rt_cuda.backend import CudaBackend

    return [CudaBackend()]
