"""The sketch backend is found, keeps every contract, and writes what the cpu backend writes."""

from __future__ import annotations

import clover_rt
from clover_rt.plugins import discover, open_device
from clover_rt_conformance import Suite


def text(backend):
    with clover_rt.load(backend=backend) as model:
        response = model.generate("Hello", mode="ar", max_new_tokens=8)
        return "".join(getattr(event, "text", "") for event in response)


def test_the_backend_is_found():
    found = discover(only="sketch")
    assert list(found.backends) == ["sketch"]
    assert found.findings == ()


def test_it_writes_what_the_cpu_backend_writes():
    assert text("sketch") == text("cpu")


class TestSketch(Suite):
    """The device's memory, and every case of the operations that have a kernel.

    What does not apply to it is skipped with the reason.
    """

    backend = "sketch"
    ops = ("device", *open_device("sketch")[1].kernels)
