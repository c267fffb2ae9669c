"""The backend: asks both engines for their devices, and opens one with the engine that found it."""

from __future__ import annotations

import os

from clover_rt.backend import Backend, Device, DeviceInfo, Probe
from clover_rt_rocm.choice import decide
from clover_rt_rocm.hip import find as hip
from clover_rt_rocm.opencl import find as opencl
from clover_rt_rocm.variables import wrong_override


class RocmBackend(Backend):
    """AMD GPUs by default, and what else an engine can drive by name.

    Both engines import their libraries only in `probe` and `open_device`.
    """

    name = "rocm"
    api = (1, 1)

    def probe(self) -> Probe:
        """Return the devices of both engines, what is chosen first, or both problems.

        A problem beside devices would refuse them all, so `decide` tells it with a device.
        """
        triton, cl = hip.probe(), opencl.probe()
        devices = decide(triton, cl, wrong_override(os.environ), os.environ)
        if devices:
            return Probe(devices=devices)
        return Probe(
            problem=f"Triton: {triton.problem}; OpenCL: {cl.problem}",
            fix=f"{cl.fix}; or {triton.fix}",
        )

    def open(self, info: DeviceInfo) -> Device:
        if info.id.startswith("opencl:"):
            return opencl.open_device(info)
        return hip.open_device(info)
