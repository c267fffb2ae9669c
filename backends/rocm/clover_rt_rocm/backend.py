"""The backend: asks each engine for its devices, and opens one with the engine that found it."""

from __future__ import annotations

from clover_rt.backend import Backend, Device, DeviceInfo, Probe
from clover_rt_rocm.opencl import find

# engines by the word that their device ids begin with, the preferred one first; each has
# probe() -> Probe and open_device(info) -> Device, and imports its libraries only in these
ENGINES = {"opencl": find}


class RocmBackend(Backend):
    """AMD GPUs by default, and what else an engine can drive by name."""

    name = "rocm"
    api = (1, 0)

    def probe(self) -> Probe:
        """Return the devices of all engines; the first engine's problem where there is none."""
        found = [engine.probe() for engine in ENGINES.values()]
        devices = tuple(info for answer in found for info in answer.devices)
        return Probe(devices=devices) if devices else found[0]

    def open(self, info: DeviceInfo) -> Device:
        device: Device = ENGINES[info.id.partition(":")[0]].open_device(info)
        return device
