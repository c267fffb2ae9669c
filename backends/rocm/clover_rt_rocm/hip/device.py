"""A card through HIP: the cuda backend's device, since torch names its calls alike for both."""

from __future__ import annotations

import os
from dataclasses import replace

from clover_rt.backend import DeviceInfo
from clover_rt_cuda.device import CudaDevice
from clover_rt_rocm import variables
from clover_rt_rocm.hip import recording


class HipDevice(CudaDevice):  # type: ignore[misc]
    """One card; its passes are recorded only where that was tried in a process of its own.

    records  whether it records, whatever was tried: None asks `recording`
    """

    blocking = "HIP_LAUNCH_BLOCKING"

    def __init__(self, info: DeviceInfo, records: bool | None = None) -> None:
        super().__init__(replace(info, id=info.id.replace("hip:", "cuda:")))
        about = {k: v for k, v in info.notes.items() if k not in ("engine", "arch", "chosen")}
        self.driver = ", ".join(f"{k} {v}" for k, v in about.items())
        self.overrides = variables.names(os.environ)
        if self.is_interpreted:
            return
        self.has_graphs = recording.is_safe(info) if records is None else records
