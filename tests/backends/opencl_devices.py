"""The OpenCL device that tests run on: PoCL where it is installed, else the first that there is."""

from __future__ import annotations

from typing import Any

import pytest

MISSING = 'pip install "pyopencl[pocl]"'


def opencl_devices() -> list[Any]:
    """Return the pyopencl devices; fails the test, and says what is missing, without one."""
    from clover_rt_rocm.opencl.find import platforms

    found = [device for _, devices in platforms() for device in devices]
    if not found:
        pytest.fail(f"needs an OpenCL device: {MISSING}")
    return found


def opencl_index() -> int:
    """Return N of the device's name `opencl:N`."""
    names = [device.platform.name for device in opencl_devices()]
    return next((i for i, name in enumerate(names) if "Portable" in name), 0)


def opencl_device() -> Any:
    return opencl_devices()[opencl_index()]
