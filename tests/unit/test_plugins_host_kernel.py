"""A numpy function becomes a kernel on any device; its mistakes are told by name."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.backend import HostDevice, Tensor, Usage, host_kernel
from clover_rt.errors import BadInput, OutOfMemory
from clover_rt.ops import OPS
from clover_rt.spec import Numerics, Precision
from clover_rt_conformance.harness import call, run_case, signature
from tests.toy import ToyDevice


class Host(HostDevice):
    name = "host"
    kernels: dict = {}


DEVICES = {"host memory": Host, "opaque memory": lambda: ToyDevice("toy")}


@pytest.fixture(params=list(DEVICES))
def device(request):
    return DEVICES[request.param]()


def linear(x, w, residual=None):
    y = x @ w.values(np.float32).T
    return y if residual is None else y + residual


def rms_norm(x, w, y, eps, offset):
    groups = x.reshape(len(x), -1, len(w))
    scale = np.sqrt((groups * groups).mean(axis=-1, keepdims=True) + np.float32(eps))
    y[:] = (groups / scale * (w + np.float32(offset))).reshape(x.shape)


def begin(params, page_table, counts):
    for slot, index, page, _ in params.page_deltas.tolist():
        page_table[slot, index] = page
    for slot, token, amount, _ in params.count_deltas.tolist():
        counts[slot, token] += amount


def group_rows(ids, experts):
    flat = ids.reshape(-1)
    real = (flat >= 0) & (flat < experts)
    order = np.argsort(np.where(real, flat, experts), kind="stable")
    order[real.sum() :] = -1
    counts = np.bincount(flat[real], minlength=experts)
    return {"order": order, "offsets": np.concatenate([[0], np.cumsum(counts)])}


def values(weight):
    return weight.values(np.float32)


FUNCTIONS = {
    "returns its output": (linear, {}),
    "writes in place, weights decoded once": (rms_norm, {"prepare": values}),
    "updates states": (begin, {}),
    "returns several": (group_rows, {}),
}


@pytest.mark.parametrize("form", list(FUNCTIONS))
def test_every_form_of_function_passes_the_cases_of_its_op(device, form):
    function, options = FUNCTIONS[form]
    spec = OPS[function.__name__]
    device.kernels = {spec.name: host_kernel(spec, function, device, **options)}
    # every third case: the forms are what is tested here, not the formulas
    cases = list(spec.cases())[::3]
    assert cases
    for case in cases:
        assert run_case(device, spec, case, Precision.EXACT) == [], case.id


def kernel_of(name, function, device):
    device.kernels = {name: host_kernel(OPS[name], function, device)}
    return device


def first_case(name, rows=True):
    return next(c for c in OPS[name].cases() if ("K-09" in c.classes) is not rows)


def test_a_function_sees_live_rows_only_and_the_rest_stays(device):
    seen = []

    def output_gate(o, gate):
        seen.append((o.shape, gate.shape))
        return np.full_like(o, 7)

    case = next(c for c in OPS["output_gate"].cases() if c.axes["T"] > 1)
    inputs = case.inputs()
    rows = inputs["params"].rows
    wide = {k: np.repeat(v, 2, 0) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
    case = type(case)(case.id, case.op, {**case.axes, "T": 2 * case.axes["T"]}, lambda rng: wide)
    kernel_of("output_gate", output_gate, device)
    out = call(device, OPS["output_gate"], case, Precision.EXACT)["y"]
    assert seen == [((rows, case.axes["N"]),) * 2]
    assert (out[:rows] == 7).all()
    assert np.isnan(out[rows:]).all()


def test_a_pass_without_rows_does_not_call_a_function_that_has_nothing_to_write(device):
    def rms_norm(x):
        raise AssertionError("called")

    kernel_of("rms_norm", rms_norm, device)
    call(device, OPS["rms_norm"], first_case("rms_norm", rows=False), Precision.EXACT)


def test_an_unknown_parameter_is_refused_with_the_known_names(device):
    with pytest.raises(BadInput, match="CRT-3410") as caught:
        host_kernel(OPS["rms_norm"], lambda x, weight: x, device)
    assert "takes weight" in str(caught.value)
    assert "params, x, w, y, eps, offset" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "code", "says"),
    [
        (lambda x: None, "CRT-3411", "gave no y"),
        (lambda x: {"z": x}, "CRT-3411", "gave no y"),
        (lambda x: {"y": x, "z": x}, "CRT-3413", "gave z"),
        (lambda x: x[:, :1], "CRT-3412", ", 1]"),
    ],
    ids=["nothing", "another name", "a name too many", "another shape"],
)
def test_a_wrong_result_is_told_with_its_name(device, function, code, says):
    kernel_of("rms_norm", function, device)
    with pytest.raises(BadInput, match=code) as caught:
        call(device, OPS["rms_norm"], first_case("rms_norm"), Precision.EXACT)
    assert says in str(caught.value)


def test_what_it_says_of_itself_is_asked_as_of_any_kernel():
    kernel = host_kernel(
        OPS["linear"],
        linear,
        Host(),
        supports=lambda sig: f"N={sig['N']} exceeds 0",
        numerics=Numerics.BF16,
        row_invariant=True,
    )
    case = first_case("linear")
    sig = signature(OPS["linear"], case, ("float32", "float32"), Precision.EXACT)
    assert kernel.supports(sig) == f"N={sig['N']} exceeds 0"
    assert kernel.numerics(sig) is Numerics.BF16
    assert kernel.row_invariant(sig)


def test_a_host_device_keeps_bytes_and_aligns_them():
    device = Host()
    a, b = device.alloc(100, Usage.EDGE), device.alloc(100, Usage.EDGE)
    assert not a.array.any()
    assert a.array.ctypes.data % device.alignment == 0
    sent = np.arange(10, dtype=np.float32)
    device.upload(a, 8, sent)
    device.copy(b, 0, a, 8, 40)
    back = np.zeros(10, np.float32)
    device.download(b, 0, back)
    np.testing.assert_array_equal(back, sent)
    np.testing.assert_array_equal(device.array(Tensor(b, np.dtype("f4"), (2, 5))).ravel(), sent)


def test_memory_that_the_system_refuses_is_told_with_its_size(monkeypatch):
    def refuse(*args):
        raise MemoryError

    monkeypatch.setattr("clover_rt.backend.np.zeros", refuse)
    with pytest.raises(OutOfMemory, match="requested 1000 bytes"):
        Host().alloc(1000, Usage.EDGE)
