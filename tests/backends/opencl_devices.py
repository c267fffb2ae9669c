"""The OpenCL device that tests run on: PoCL where it is installed, else the first that there is."""

from __future__ import annotations

from typing import Any

import pytest

MISSING = 'pip install "pyopencl[pocl]"'
# PoCL has neither integer dots nor subgroups: a function with the same result, and subgroups of one
PLAIN_DOT = """int plain_dot(uint a, uint b, int sum)
{
    char4 x = as_char4(a), y = as_char4(b);
    return sum + x.s0 * y.s0 + x.s1 * y.s1 + x.s2 * y.s2 + x.s3 * y.s3;
}
#define DOT4(a, b, sum) plain_dot(a, b, sum)
"""
ALONE = """#define TEAM get_local_id(0)
#define TEAMS get_local_size(0)
#define LANE 0
#define LANES 1
#define LANES_SUM(x) (x)
#define LANES_MAX(x) (x)
"""


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
