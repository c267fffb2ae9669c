"""What a device has beyond OpenCL C 1.2: found by running it, used where it works.

PoCL has nothing of it, so functions with the same results stand in for what a driver would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clover_rt.backend import DeviceInfo
from clover_rt.ops import OPS
from clover_rt.plan.case_run import typed
from clover_rt.spec import Numerics, Precision
from clover_rt_conformance.bound import Bound
from tests.backends.opencl_devices import ALONE, PLAIN_DOT, opencl_device

BROKEN = "#error a driver that cannot\n"
WRONG = {
    "int dot": PLAIN_DOT.replace("x.s3 * y.s3", "(uchar)x.s3 * y.s3"),
    "subgroups": ALONE.replace("TEAM get_local_id(0)", "TEAM 0"),
    "fp16": "#define half float\n#define as_half(x) as_float((uint)(x) << 13)\n"
    "#define as_ushort(x) ((uint)(x))\n",
}
WORKS = {"int dot": PLAIN_DOT, "subgroups": ALONE}


@pytest.fixture(scope="module")
def handle() -> Any:
    return opencl_device()


@pytest.fixture
def found(handle: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return found(name, *texts) -> the probe of a driver whose forms of a capability these are."""
    from clover_rt_rocm.opencl import capabilities

    announced = handle.extensions.split()[0]

    def probe(name: str, *texts: str) -> Any:
        forms = tuple(capabilities.Form("a form", announced, text) for text in texts)
        trials = (replace(t, forms=forms if t.name == name else ()) for t in capabilities.TRIALS)
        monkeypatch.setattr(capabilities, "TRIALS", tuple(trials))
        monkeypatch.setattr(capabilities, "_standards", lambda device: ["CL1.2"])
        capabilities._tried.cache_clear()
        return capabilities._tried(handle)

    yield probe
    capabilities._tried.cache_clear()


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("how", ["does not compile", "gives wrong numbers"])
def test_what_is_announced_and_fails_is_told_and_not_used(found: Any, name: str, how: str) -> None:
    capabilities = found(name, BROKEN if how == "does not compile" else WRONG[name])
    assert capabilities.text == ""
    assert capabilities.notes[name] == f"a form {how}"


@pytest.mark.parametrize("name", WORKS)
def test_the_first_form_that_works_is_used(found: Any, name: str) -> None:
    capabilities = found(name, BROKEN, WRONG[name], WORKS[name], BROKEN)
    assert capabilities.text == WORKS[name]
    assert capabilities.notes[name] == "a form"


def test_a_device_that_announces_nothing_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    opencl_device()
    from types import SimpleNamespace

    from clover_rt_rocm.opencl import capabilities

    monkeypatch.setattr(capabilities, "_tried", lambda device: pytest.fail("it was tried"))
    found = capabilities.probe(SimpleNamespace(extensions="cl_khr_fp64 cl_khr_int64_base_atomics"))
    assert (found.text, found.standard) == ("", "CL1.2")
    assert set(found.notes.values()) == {"not announced"}


def test_a_probe_tells_what_is_announced_and_runs_nothing(
    handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clover_rt_rocm.opencl import capabilities, find

    extension = handle.extensions.split()[0]
    forms = (capabilities.Form("a form", extension, BROKEN),)
    trials = (replace(t, forms=forms) for t in capabilities.TRIALS)
    monkeypatch.setattr(capabilities, "TRIALS", tuple(trials))
    monkeypatch.setattr(capabilities.cl, "Context", lambda *_: pytest.fail("a context was made"))
    monkeypatch.setattr(find, "platforms", lambda: [("a platform", [handle])])
    (info,) = find.probe().devices
    told = "announced, and tried as the device is opened: a form"
    assert [info.notes[name] for name in ("int dot", "subgroups", "fp16")] == [told] * 3


def test_an_opened_device_tells_what_was_tried_and_which_products_it_uses(handle: Any) -> None:
    from clover_rt_rocm.opencl.capabilities import Capabilities
    from clover_rt_rocm.opencl.device import ClDevice

    notes = {"int dot": "a form", "subgroups": "another does not run", "fp16": "a form"}
    device = ClDevice(handle, capabilities=Capabilities(int_dot=PLAIN_DOT, notes=notes))
    device.info = DeviceInfo("opencl:0", "a card", notes={"chosen": "by its name", "int dot": "?"})
    assert device.info.notes == {
        **notes,
        "chosen": "by its name; int dot: a form; subgroups: another does not run",
    }
    device.close()
    plain = ClDevice(handle, capabilities=Capabilities(notes=dict.fromkeys(notes, "not announced")))
    plain.info = DeviceInfo("opencl:0", "a card", notes={"chosen": "by its name"})
    assert plain.info.notes["chosen"] == "by its name"
    plain.close()


@pytest.mark.parametrize("fmt", ["q8", "q4-32"])
def test_rows_in_8_bits_are_multiplied_by_the_formula(handle: Any, fmt: str) -> None:
    """By the formula: codes are x / scale to the nearest, scale the largest of 32 over 127.

    A block of zeros and one of the smallest numbers are among the rows.
    """
    from clover_rt_rocm.opencl.capabilities import Capabilities
    from clover_rt_rocm.opencl.device import ClDevice

    device, spec = ClDevice(handle, capabilities=Capabilities(int_dot=PLAIN_DOT)), OPS["linear"]
    case = next(c for c in spec.cases() if c.id == f"linear/{fmt}/T=33,N=65,K=192")
    inputs = typed(spec, case.inputs(0), device.dtypes(Precision.FAST))
    inputs["x"][0, :32], inputs["x"][1, 32:64] = 0, 1e-38
    with Bound(device, spec, case, Precision.FAST, inputs) as bound:
        assert bound.numerics is Numerics.INT8_G32
        y = bound.run()["y"]
    device.close()
    x = inputs["x"].reshape(33, -1, 32)
    largest = np.abs(x).max(axis=2, keepdims=True)
    codes = np.rint(x * (np.float32(127) / np.where(largest > 1e-30, largest, np.inf)))
    rows = (codes * (largest / np.float32(127)).astype(np.float64)).reshape(33, -1)
    want = rows @ inputs["w"].values(np.float64).T
    tolerance = spec.tolerance[Numerics.F32]
    error, scale = np.abs(y - want), np.abs(want).max()
    assert (error <= tolerance.rtol * np.abs(want) + tolerance.atol * scale).all()


def test_a_row_that_is_not_finite_spoils_its_own_products_alone(handle: Any) -> None:
    from clover_rt_rocm.opencl.capabilities import Capabilities
    from clover_rt_rocm.opencl.device import ClDevice

    device, spec = ClDevice(handle, capabilities=Capabilities(int_dot=PLAIN_DOT)), OPS["linear"]
    case = next(c for c in spec.cases() if c.id == "linear/q8/T=33,N=65,K=192")
    inputs = typed(spec, case.inputs(0), device.dtypes(Precision.FAST))
    inputs["x"][3, 40], inputs["x"][5, 7] = np.inf, np.nan
    with Bound(device, spec, case, Precision.FAST, inputs) as bound:
        y = bound.run()["y"]
    device.close()
    spoilt = ~np.isfinite(y)
    assert spoilt[[3, 5]].all() and spoilt.sum() == 2 * y.shape[1]


@pytest.mark.parametrize(
    ("rows", "fmt", "precision", "numerics"),
    [
        (33, "q4-32", Precision.FAST, Numerics.INT8_G32),
        (33, "q4-32", Precision.EXACT, Numerics.F32),
        (33, "bf16", Precision.FAST, Numerics.F32),
        (1, "q4-32", Precision.FAST, Numerics.F32),
    ],
    ids=["many rows in fast", "exact", "a plain weight", "one row"],
)
def test_only_many_rows_of_quantised_weights_in_fast_are_rounded(
    handle: Any, rows: int, fmt: str, precision: Precision, numerics: Numerics
) -> None:
    from clover_rt.plan.case_run import signature
    from clover_rt_rocm.opencl.capabilities import Capabilities
    from clover_rt_rocm.opencl.device import ClDevice

    spec = OPS["expert_gemm"]
    case = next(c for c in spec.cases() if c.id == f"expert_gemm/{fmt}/T={rows}/shared")
    for text in (PLAIN_DOT, ""):
        device = ClDevice(handle, capabilities=Capabilities(int_dot=text))
        sig = signature(spec, case, device.dtypes(precision), precision)
        told = device.kernels["expert_gemm"].numerics(sig)
        assert told is (numerics if text else Numerics.F32)
        device.close()
