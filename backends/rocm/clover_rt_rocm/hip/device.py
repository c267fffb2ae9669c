"""A card through HIP: the cuda backend's device, since torch names its calls alike for both."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property

from clover_rt.backend import DeviceInfo
from clover_rt_cuda.device import CudaDevice
from clover_rt_rocm import variables
from clover_rt_rocm.hip import recording


class HipDevice(CudaDevice):  # type: ignore[misc]
    """One card; its passes are recorded only where that was tried in a process of its own.

    records  whether it records, whatever was tried: None asks `recording`
    """

    blocking = "HIP_LAUNCH_BLOCKING"
    elsewhere = (
        "use another engine or backend: --device opencl:N, as `clover-rt backends` lists it, "
        "--backend vulkan or --backend cpu"
    )

    def __init__(self, info: DeviceInfo, records: bool | None = None) -> None:
        # first: a card may fail as it is opened
        self.overrides = variables.names(os.environ)
        self._found, self._records = info, records
        super().__init__(replace(info, id=info.id.replace("hip:", "cuda:")))

    @cached_property
    def has_graphs(self) -> bool:
        """Are passes recorded? The first pass asks, when progress has somebody to be told to."""
        if self._records is None:
            return recording.is_safe(self._found, self._tell)
        return self._records
