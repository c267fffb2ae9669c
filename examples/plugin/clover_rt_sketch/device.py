"""The sketch backend: what KERNELS names runs here, everything else on the host."""

from __future__ import annotations

import numpy as np

from clover_rt.backend import Backend, DeviceInfo, HostDevice, Probe, host_kernel
from clover_rt.ops import OPS
from clover_rt.spec import Weight


def linear(x: np.ndarray, w: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    """Return x [T, K] times w [N, K], plus the residual [T, N] where there is one."""
    y = x @ w.T
    return y if residual is None else y + residual


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float, offset: float) -> np.ndarray:
    """Return x [T, G*K] with each group of K columns normalised, times (offset + w)."""
    groups = x.reshape(len(x), x.shape[1] // len(w), len(w))
    mean = np.mean(groups * groups, axis=-1, keepdims=True)
    return (groups / np.sqrt(mean + np.float32(eps)) * (np.float32(offset) + w)).reshape(x.shape)


# numpy functions, each named after the operation that it computes
KERNELS = (linear, rms_norm)


def numbers(weight: Weight) -> np.ndarray:
    """Return a weight in float32; called once a node, its result is kept."""
    return weight.values(np.float32)


class SketchDevice(HostDevice):
    name = "sketch"

    def __init__(self) -> None:
        self.kernels = {
            f.__name__: host_kernel(OPS[f.__name__], f, self, prepare=numbers) for f in KERNELS
        }


class SketchBackend(Backend):
    name = "sketch"
    # the plugin API that this was written for
    api = (1, 0)

    def probe(self) -> Probe:
        return Probe(devices=(DeviceInfo(id="sketch:0", name="numpy on the host"),))

    def open(self, info: DeviceInfo) -> SketchDevice:
        return SketchDevice()
