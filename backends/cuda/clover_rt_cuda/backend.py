"""The cuda backend: which devices there are, found without loading more than that needs.

`CLOVER_RT_TRITON_INTERPRET=1` adds the device `interpreter`: the same kernels, run by Triton's
interpreter on the host. It is for tests: slow, and opened only by name.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from clover_rt.backend import Backend, Device, DeviceInfo, Probe
from clover_rt.errors import BackendUnavailable
from clover_rt_cuda.choice import decide

INTERPRET = "CLOVER_RT_TRITON_INTERPRET"
TRITON_INTERPRET = "TRITON_INTERPRET"
INTERPRETER = DeviceInfo(
    id="interpreter",
    name="Triton interpreter on the host",
    kind="cpu",
    is_software=True,
    notes={"environment": f"{TRITON_INTERPRET}=1"},
)
DRIVER = Path("/sys/module/nvidia/version")
LIBRARY = "libcuda.so.1"


class CudaBackend(Backend):
    """NVIDIA devices through torch and Triton."""

    name = "cuda"
    api = (1, 0)

    def probe(self) -> Probe:
        missing = [name for name in ("torch", "triton") if find_spec(name) is None]
        if missing:
            return Probe(
                problem=f"{' and '.join(missing)} cannot be imported",
                fix="install a CUDA build of torch, which brings its triton",
            )
        devices, problem, fix = _cards()
        if os.environ.get(INTERPRET) == "1":
            return Probe(decide((*devices, INTERPRETER)))
        return Probe(decide(devices), problem, fix)

    def open(self, info: DeviceInfo) -> Device:
        if info.id == INTERPRETER.id:
            interpret()
        # first here: it loads torch, and the kernels load triton
        from clover_rt_cuda.device import CudaDevice

        return CudaDevice(info)


def _cards() -> tuple[tuple[DeviceInfo, ...], str, str]:
    """Return the cards that torch sees, or a problem and what to do about it."""
    import torch

    if torch.version.cuda is None:
        problem = f"torch {torch.__version__} is built without CUDA"
        return (), problem, "install a CUDA build of torch"
    if not torch.cuda.is_available():
        problem = f"torch {torch.__version__} finds no usable card"
        return (), problem, "look at the driver with nvidia-smi, and at CUDA_VISIBLE_DEVICES"
    devices = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        notes = {
            "arch": f"sm_{card.major}{card.minor}",
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "driver": driver_version(),
            "visible devices": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
        }
        devices.append(
            DeviceInfo(f"cuda:{index}", card.name, "gpu", card.total_memory, notes=notes)
        )
    return tuple(devices), "", ""


def driver_version() -> str:
    """Return the version of the driver's module, or the CUDA it is for where it has none (WSL)."""
    try:
        return DRIVER.read_text().strip()
    except OSError:
        number = ctypes.c_int()
    try:
        ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return "unknown"
    return f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"


def interpret() -> None:
    """Make triton, which reads this once, interpret kernels in this process."""
    triton = sys.modules.get("triton")
    if triton is not None and not triton.knobs.runtime.interpret:
        raise BackendUnavailable(
            what="device 'interpreter' was requested",
            evidence="triton is loaded already, and compiles in this process",
            fix=f"set {TRITON_INTERPRET}=1 before the program starts",
            code="CRT-3520",
        )
    os.environ[TRITON_INTERPRET] = "1"
