"""The NEON kernels: every op case of the suite, run by an emulator of an Arm processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clover_rt.ops import OPS
from clover_rt.spec import Precision
from clover_rt_conformance.harness import Declined, call, run_case
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.jit import TYPES
from clover_rt_cpu.jit.isa import supported
from tests.backends.cpu_guest import Guest, missing, open_guest

# an emulator takes its time: in the full lane
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CpuDevice, Guest]]:
    if lacks := missing():
        pytest.fail(lacks)
    with pytest.MonkeyPatch.context() as patch:
        device, guest = open_guest(tmp_path_factory.mktemp("guest"), "neon", patch)
        yield device, guest
        guest.close()
        device.close()


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.value)
@pytest.mark.parametrize("op", TYPES)
def test_every_op_case_keeps_its_contract_on_an_emulated_processor(
    opened: tuple[CpuDevice, Guest], op: str, precision: Precision
) -> None:
    device, guest = opened
    spec, before, taken = OPS[op], guest.steps, 0
    problems = {}
    for case in spec.cases():
        try:
            found = run_case(device, spec, case, precision)
        except Declined:
            # numpy takes these on every processor: test_conformance_cpu.py
            continue
        taken += 1
        if found:
            problems[case.id] = [str(p) for p in found]
    assert problems == {}
    # each case that was taken is run twice
    assert guest.steps - before >= 2 * taken > 0


@pytest.mark.skipif(not supported(), reason="this processor runs no generated kernels to compare")
@pytest.mark.parametrize(
    "op", ["linear", "expert_gemm", "attend", "block_scan", "block_memory", "confidence_topk"]
)
def test_neon_gives_the_bits_of_this_processor_in_exact(
    opened: tuple[CpuDevice, Guest], op: str
) -> None:
    """Sums have one order and formulas one form, whatever the width of the vectors."""
    device, _ = opened
    spec = OPS[op]
    native = CpuDevice(workers=1, isa=supported()[0])
    cases = [c for c in spec.cases() if "K-09" not in c.classes and "nan" not in c.id]
    for case in cases[:: max(1, len(cases) // 6)]:
        found, want = (call(d, spec, case, Precision.EXACT) for d in (device, native))
        for name, array in want.items():
            assert found[name].tobytes() == array.tobytes(), f"{case.id}: {name}"
    native.close()
