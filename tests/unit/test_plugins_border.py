"""What a plugin raises or answers wrongly is told as the plugin's, with the operation."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.backend import HostDevice, Tensor
from clover_rt.errors import CompileError, DeviceLost, OutOfMemory, PluginFailed
from clover_rt.ops import OPS
from clover_rt.plan import Profile
from clover_rt.plan.border import check_operands
from clover_rt.plan.memory import Pool
from clover_rt.spec import TableClass
from tests.toy import PRIMITIVES, ToyDevice, ToyKernel
from tests.unit.plan_bench import LAYOUT, bind_toy, commit, golden_graph, host, preview

IDS = (5, 6, 7)


def broken(method, answer=None, op="rms_norm", error=None):
    """Return a device with every primitive, one of which breaks in one method."""
    device = ToyDevice("card", PRIMITIVES)
    device.origin = "plugin 'acme' 1.2"

    def misbehave(*_):
        if error is not None:
            raise error
        return answer

    class Broken(ToyKernel):
        pass

    setattr(Broken, method, lambda self, *args: misbehave(*args))
    device.kernels[op] = Broken(OPS[op], device, lambda sig: "")
    return device


@pytest.mark.parametrize(
    ("method", "code", "doing"),
    [
        ("supports", "CRT-3401", "say whether it supports rms_norm"),
        ("numerics", "CRT-3409", "say how it computes rms_norm"),
        ("row_invariant", "CRT-3409", "say how it computes rms_norm"),
        ("prepare", "CRT-3402", "prepare rms_norm"),
        ("scratch", "CRT-3403", "bind rms_norm"),
        ("bind", "CRT-3403", "bind rms_norm"),
    ],
)
@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit("boom")], ids=["raises", "exits"])
def test_what_a_kernel_raises_is_told_with_plugin_operation_and_trace(method, code, doing, error):
    device = broken(method, error=error)
    with pytest.raises(PluginFailed) as caught:
        bind_toy(device).run(commit(IDS))
    told = caught.value
    assert told.code == code
    assert told.what.startswith("card (plugin 'acme' 1.2) failed to ")
    assert doing in told.what
    assert f"{type(error).__name__}: boom" in told.evidence
    assert "test_plugins_border.py" in told.evidence
    assert "in misbehave" in told.trace
    assert told.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemory.of("card", 1000, 10),
        DeviceLost.of("card", "linear", "reset"),
        CompileError.of("card", "linear", "line 3: no"),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("method", ["supports", "prepare", "bind"])
def test_typed_errors_cross_as_they_are(method, error):
    with pytest.raises(type(error)) as caught:
        bind_toy(broken(method, error=error)).run(commit(IDS))
    assert caught.value is error


def test_the_typed_errors_hold_their_numbers():
    text = str(OutOfMemory.of("card", 1000, 10))
    assert "CRT-3200" in text and "requested 1000 bytes, free 10 bytes" in text
    text = str(DeviceLost.of("card", "linear", "reset"))
    assert "CRT-3300" in text and "last operation linear: reset" in text
    text = str(CompileError.of("card", "linear", "line 3: no\n"))
    assert "CRT-3500" in text and "line 3: no\n" in text


@pytest.mark.parametrize("method", ["numerics", "row_invariant"])
@pytest.mark.parametrize("answer", ["f32", None])
def test_an_answer_on_how_a_kernel_computes_has_its_type(method, answer):
    with pytest.raises(PluginFailed, match="CRT-3415") as caught:
        bind_toy(broken(method, answer))
    assert repr(answer) in caught.value.evidence


@pytest.mark.parametrize("answer", [None, True, 0])
def test_an_answer_of_supports_that_is_no_sentence_is_the_plugins_mistake(answer):
    with pytest.raises(PluginFailed, match="CRT-3407") as caught:
        bind_toy(broken("supports", answer))
    assert f"answered {answer!r}, not a string" in caught.value.evidence


def test_a_kernel_for_an_operation_that_there_is_not_is_the_plugins_mistake():
    device = ToyDevice("card", PRIMITIVES)
    device.kernels["rmsnorm"] = device.kernels["rms_norm"]
    with pytest.raises(PluginFailed, match="CRT-3408") as caught:
        bind_toy(device)
    assert "kernel for 'rmsnorm'" in caught.value.what
    assert "did you mean 'rms_norm'" in caught.value.fix


def test_a_missing_return_of_bind_or_capture_is_told_before_the_first_pass():
    with pytest.raises(PluginFailed, match="CRT-3414") as caught:
        bind_toy(broken("bind")).run(commit(IDS))
    assert "was to bind rms_norm (layers.0." in caught.value.what
    device = ToyDevice("card", PRIMITIVES)
    device.capture = lambda steps: None
    with pytest.raises(PluginFailed, match="CRT-3414") as caught:
        bind_toy(device).run(commit(IDS))
    assert "was to capture" in caught.value.what


class Lost(Exception):
    """What a driver would raise."""


def failing_step(op):
    """Return a device whose steps of one op raise."""
    device = ToyDevice("card", PRIMITIVES)

    class Failing(ToyKernel):
        def bind(self, *args):
            def step():
                raise Lost("bus error")

            return step

    device.kernels[op] = Failing(OPS[op], device, lambda sig: "")
    return device


def raised(plan, work):
    with pytest.raises(PluginFailed) as caught:
        plan.run(work)
    return caught.value


def test_a_step_that_raises_is_named_though_it_was_captured():
    plan = bind_toy(failing_step("router_topk"))
    error = raised(plan, commit(IDS))
    assert error.code == "CRT-3404"
    assert "run router_topk (layers.0.moe/" in error.what
    assert error.evidence.startswith("Lost: bus error")
    assert "in step" in error.trace


def test_a_step_inside_a_submission_that_hides_it_is_narrowed_to_the_submission():
    device = failing_step("router_topk")

    def capture(steps):
        def submit():
            raise Lost("queue")

        return submit

    device.capture = capture
    plan = bind_toy(device)
    error = raised(plan, commit(IDS))
    assert "steps that were submitted together, begin to " in error.what
    assert "--profile" in error.what
    plan.profile = Profile()
    assert "run router_topk (layers.0.moe/" in raised(plan, commit(IDS)).what


def test_an_error_that_comes_up_at_synchronize_is_charged_to_the_step_under_profile():
    device = ToyDevice("card", PRIMITIVES)
    pending = []
    real = ToyKernel.bind

    class Late(ToyKernel):
        def bind(self, *args):
            step = real(self, *args)
            return lambda: (step(), pending.append(Lost("late")))

    def synchronize():
        if pending:
            raise pending.pop()

    device.kernels["rope"] = Late(OPS["rope"], device, lambda sig: "")
    device.synchronize = synchronize
    plan = bind_toy(device)
    plan.profile = Profile()
    assert "run rope (layers.3.attention/" in raised(plan, commit(IDS)).what


def test_an_error_that_comes_up_at_the_download_is_told_as_the_end_of_the_pass():
    device = ToyDevice("card", PRIMITIVES)
    plan = bind_toy(device)
    picks = plan.program(TableClass.COMMIT, len(IDS)).picks

    def download(src, offset, dst):
        # the plan reads the rows that were asked for, the kernel the whole operand
        if src is picks.buffer and len(dst) < picks.shape[0]:
            raise Lost("bus error")
        ToyDevice.download(device, src, offset, dst)

    device.download = download
    error = raised(plan, commit(IDS))
    assert error.code == "CRT-3405"
    assert "finish a pass" in error.what


def test_a_failing_move_is_named_after_its_value():
    device = ToyDevice("card", ["linear"])
    plan = bind_toy(device, host())
    plan.run(commit(IDS))
    program = plan.program(TableClass.COMMIT, len(IDS))
    moved = next(a for a in program.actions if a.moved)

    def upload(dst, offset, src):
        if src.dtype == np.float32:
            raise Lost("bus error")
        ToyDevice.upload(device, dst, offset, src)

    device.upload = upload
    error = raised(plan, commit(IDS))
    assert f"move {moved.moved} between the device and the host" in error.what


@pytest.mark.parametrize("method", ["alloc", "capture"])
def test_what_the_device_itself_raises_is_told_too(method):
    device = ToyDevice("card", PRIMITIVES)
    codes = {"alloc": "CRT-3405", "capture": "CRT-3406"}

    def misbehave(*_):
        raise Lost("driver")

    setattr(device, method, misbehave)
    with pytest.raises(PluginFailed) as caught:
        bind_toy(device).run(commit(IDS))
    assert caught.value.code == codes[method]


DEVICES = {
    "layer ops": lambda: (ToyDevice("card", OPS), None),
    "primitives": lambda: (ToyDevice("card", PRIMITIVES), None),
    "two places": lambda: (ToyDevice("card", ["linear", "rms_norm", "rope"]), host()),
}


@pytest.mark.parametrize("make", list(DEVICES))
@pytest.mark.parametrize("name", ["clover_tiny", "clover_tiny_b8", "qwen35moe_tiny"])
def test_operands_of_every_golden_plan_are_dense_aligned_and_apart(make, name):
    device, behind = DEVICES[make]()
    device.alignment = 256
    plan = bind_toy(device, behind, golden_graph(name))
    for table in TableClass:
        for bucket in plan.placement.buckets.get(table, [])[:3]:
            for top in (1, 64):
                plan.program(table, bucket, top)
    bound = [(d, *b) for d in plan.devices.values() for b in d.bound]
    assert len(bound) > 100
    for where, sig, operands in bound:
        check_operands(OPS[sig.op], operands, where)
        for operand in operands:
            at, spec = operands[operand], OPS[sig.op].operand(operand)
            axes = dict(sig.axes) | {"params": LAYOUT.nbytes, "segments": LAYOUT.segments}
            assert at.shape == OPS[sig.op].shape(operand, axes), f"{sig.op}.{spec.name}"


def span(buffer, offset, n):
    return Tensor(buffer, np.dtype("f4"), (n,), offset)


class Host(HostDevice):
    name = "host"
    kernels: dict = {}


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ((0, 16), (4, 8), "y starts at byte 4"),
        ((0, 16), (64, 17), "y ends past its buffer"),
        ((0, 32), (64, 16), "x overlaps y"),
    ],
    ids=["unaligned", "past the end", "overlap"],
)
def test_operands_that_break_the_promise_are_seen(x, y, says):
    device = Host()
    buffer = device.alloc(128, None)
    operands = {"x": span(buffer, *x), "y": span(buffer, *y)}
    with pytest.raises(AssertionError, match=says):
        check_operands(OPS["rms_norm"], operands, device)
    assert check_operands(OPS["rms_norm"], {"x": span(buffer, *x)}, device) is None


def test_two_inputs_may_be_one_buffer():
    device = Host()
    buffer = device.alloc(128, None)
    operands = {"x": span(buffer, 0, 8), "residual": span(buffer, 0, 8)}
    check_operands(OPS["linear"], operands, device)


def test_an_offset_inside_a_buffer_is_an_error_where_a_device_has_no_views():
    device = Host()
    device.views = False
    with pytest.raises(AssertionError, match="inside a buffer"):
        check_operands(OPS["rms_norm"], {"x": span(device.alloc(128, None), 64, 8)}, device)


def test_a_binding_over_the_limit_is_refused_with_its_name_and_both_numbers():
    device = ToyDevice("card", PRIMITIVES)
    device.max_binding_bytes = 5000
    with pytest.raises(OutOfMemory) as caught:
        bind_toy(device)
    error = caught.value
    assert error.code == "CRT-3201"
    assert any(name in error.what for name in bind_toy(ToyDevice("other", PRIMITIVES)).state_places)
    assert "at most 5000 bytes" in error.evidence


def test_an_activation_over_the_limit_is_refused_with_its_name():
    device = ToyDevice("card", PRIMITIVES)
    plan = bind_toy(device)
    device.max_binding_bytes = 20_000
    plan.program(TableClass.COMMIT, 1)
    with pytest.raises(OutOfMemory, match="CRT-3201") as caught:
        plan.program(TableClass.COMMIT, 256)
    assert caught.value.what.split()[0] in {"embed", "embed/h", "layers.0.mixer/normed"}


def test_sizes_rounded_for_reuse_stay_below_the_limit():
    pool = Pool(ToyDevice("card"))
    # 1000 bytes would be rounded up to 1024
    pool.device.max_binding_bytes = 1010
    assert pool.take(1000).nbytes == 1000
    assert pool.scratch_of(1000).buffer.nbytes == 1000
    pool.device.max_binding_bytes = 0
    assert pool.take(1000).nbytes == 1024


def test_memory_that_the_device_refuses_is_told_with_the_tensor_and_both_numbers():
    device = ToyDevice("card", PRIMITIVES)
    real = device.alloc

    def alloc(nbytes, usage):
        if nbytes > 20_000:
            raise OutOfMemory.of("card", nbytes, 20_000)
        return real(nbytes, usage)

    device.alloc = alloc
    with pytest.raises(OutOfMemory) as caught:
        bind_toy(device).run(preview(IDS))
    assert caught.value.code == "CRT-3202"
    assert "free 20000 bytes" in caught.value.evidence
    assert caught.value.what.split(" needs ")[0]
