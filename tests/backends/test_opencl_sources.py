"""Rules of the OpenCL sources that hold without a device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import clover_rt_rocm
from clover_rt.ops import OPS
from clover_rt.spec import Tier

SOURCES = Path(clover_rt_rocm.__file__).parent / "opencl" / "cl"
# functions that all work-items of a group must reach: their bodies have barriers
TOGETHER = re.compile(r"\b(barrier|sum_of_items|max_of_items|few_\w+|stage_unit|scan_rows)\s*\(")


def kernels() -> Iterator[tuple[str, str]]:
    """Yield (file:kernel, body) of every kernel; a body ends at the first brace in column 0."""
    for path in sorted(SOURCES.glob("*.cl")):
        for found in re.finditer(r"^kernel .*?void (\w+)\(.*?^}", path.read_text(), re.M | re.S):
            yield f"{path.stem}:{found[1]}", found[0]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in kernels()])
def test_no_kernel_returns_before_a_barrier(body: str) -> None:
    """PoCL 3.0 makes wrong code of one that does, even where the whole group returns."""
    last = max((m.start() for m in TOGETHER.finditer(body)), default=0)
    assert "return" not in body[:last]


def test_every_primitive_has_a_source_of_its_name() -> None:
    primitives = {name for name, spec in OPS.items() if spec.tier is Tier.PRIMITIVE}
    assert primitives <= {path.stem for path in SOURCES.glob("*.cl")}
    assert len(list(kernels())) >= len(primitives)


def test_no_source_asks_for_inexact_arithmetic() -> None:
    for path in SOURCES.glob("*.cl"):
        assert not re.search(r"\b(native_\w+|half_\w+|mad)\s*\(", path.read_text()), path.name


def test_no_source_uses_what_a_device_may_lack_by_itself() -> None:
    """Subgroups and integer dots come by the names that are defined where they work."""
    for path in SOURCES.glob("*.cl"):
        assert not re.search(r"\b(\w*sub_group\w*|\w*dot_\w*8\w*)\s*\(", path.read_text()), (
            path.name
        )
