"""doctor cannot raise, judges what it ran, and tells no names."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from clover_rt.doctor import examine, render
from clover_rt.doctor.amd import gfx_target
from clover_rt.doctor.findings import CODES
from clover_rt.doctor.frameworks import runs
from clover_rt.doctor.gpus import INTEGRATED
from clover_rt.doctor.host import ABSENT, CRASHED, DONE, TIMED_OUT, UNSTARTED, Host, Ran
from clover_rt.doctor.kernels import check, check_op, copy_problem
from clover_rt.doctor.overrides import gfx_of, visible
from clover_rt.doctor.report import PROBES
from clover_rt.ops import OPS
from clover_rt.spec import Precision
from tests.toy import ToyDevice
from tests.unit.doctor_machines import CPU, KERNELS, MODEL, Machine, amd, nvidia


def codes(report):
    return [f["code"] for f in report["findings"]]


def test_a_probe_that_raises_becomes_a_finding_and_the_others_run(tmp_path, monkeypatch):
    def broken(host, report):
        report["half"] = "done"
        raise ZeroDivisionError("in a probe")
        yield

    for name in PROBES:
        monkeypatch.setitem(PROBES, name, broken)
        report = examine(Machine().host(tmp_path / name))
        monkeypatch.undo()
        assert "CRT-5001" in codes(report), name
        assert f"probe {name}: ZeroDivisionError: in a probe" in str(report["findings"])
        assert report["exit_code"] == 1, name
        assert render(report)


def test_every_function_of_a_host_may_raise(tmp_path):
    def broken(*args):
        raise OSError("no such machine")

    whole = (amd() + nvidia()).host(tmp_path)
    for name in ("run", "child", "node", "writable", "disk", "backends"):
        report = examine(replace(whole, **{name: broken}))
        assert report["exit_code"] in (1, 2)
        assert render(report)


def test_files_full_of_nonsense_do_no_harm(tmp_path):
    host = amd().host(tmp_path)
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        path.write_bytes(b"\xff\x00 : 12 : \n:::\n= -1\n")
    assert render(examine(host))


def test_a_backend_is_usable_only_if_its_kernels_are_right(tmp_path):
    wrong = {**KERNELS, "ops": [{"op": "linear", "right": 4, "refused": [], "wrong": ["a: b"]}]}
    report = examine(Machine(children={"kernels": wrong}).host(tmp_path))
    assert (codes(report), report["exit_code"]) == (["CRT-5801"], 2)


def test_a_copy_that_changes_bytes_is_wrong_numbers(tmp_path):
    bad = {**KERNELS, "copy": "3 of 9 bytes differ"}
    report = examine(Machine(children={"kernels": bad}).host(tmp_path))
    assert (codes(report), report["exit_code"]) == (["CRT-5801"], 2)


@pytest.mark.parametrize("end", [Ran(CRASHED, -11), Ran(TIMED_OUT, seconds=180), Ran(DONE, 1)])
def test_kernels_that_end_badly_are_a_finding(end, tmp_path):
    report = examine(Machine(children={"kernels": end}).host(tmp_path))
    assert codes(report) == ["CRT-5802"]
    assert end.how in report["findings"][0]["evidence"]
    assert report["exit_code"] == 2


def test_a_device_without_any_case_has_not_passed(tmp_path):
    none = {**KERNELS, "ops": [{"op": "linear", "right": 0, "refused": ["a: no"], "wrong": []}]}
    report = examine(Machine(children={"kernels": none}).host(tmp_path))
    assert (codes(report), report["exit_code"]) == (["CRT-5802"], 2)


@pytest.mark.parametrize("state", [ABSENT, UNSTARTED])
def test_children_that_cannot_be_started_blame_no_driver_and_no_device(state, tmp_path):
    torch = Machine(packages={"torch": "2.9.0"})
    host = (amd() + torch).host(tmp_path)
    end = Ran(state, err="python3: Resource temporarily unavailable")
    report = examine(replace(host, child=lambda *args: end))
    assert (codes(report), report["exit_code"]) == (["CRT-5003"], 2)
    assert "python3: Resource temporarily unavailable" in report["findings"][0]["evidence"]
    assert report["verdict"].startswith("no backend could be tried")


def test_a_backend_without_kernels_is_usable_and_said_to_run_on_the_host(tmp_path):
    names = [name for name, spec in OPS.items() if spec.reference is not None]
    bare = {**KERNELS, "ops": [], "declined": names}
    report = examine(Machine(children={"kernels": bare}).host(tmp_path))
    assert (codes(report), report["exit_code"]) == (["CRT-5806"], 0)
    assert report["findings"][0]["severity"] == "info"


def test_a_missing_hot_operation_is_a_warning(tmp_path):
    young = {**KERNELS, "declined": ["expert_gemm", "rope"]}
    report = examine(Machine(children={"kernels": young}).host(tmp_path))
    assert (codes(report), report["exit_code"]) == (["CRT-5805"], 1)


def test_a_model_that_does_not_run_makes_the_device_unusable(tmp_path):
    report = examine(Machine(children={"model": Ran(DONE, 1, err="boom")}).host(tmp_path))
    assert (codes(report), report["exit_code"]) == (["CRT-5803"], 2)


def test_other_tokens_than_the_cpu_are_a_warning(tmp_path):
    other = {**MODEL, "tokens": [1, 2, 4], "text": "two"}
    machine = amd() + Machine(children={"model rocm": other})
    report = examine(machine.host(tmp_path))
    assert codes(report) == ["CRT-5804"]
    assert "'two'; cpu: 'one'" in report["findings"][0]["evidence"]


def test_only_the_requested_backends_are_judged(tmp_path):
    bad = Ran(CRASHED, -11)
    machine = amd() + Machine(children={"kernels rocm": bad})
    assert examine(machine.host(tmp_path), wanted=["cpu"])["exit_code"] == 0
    assert examine(machine.host(tmp_path), wanted=["rocm"])["exit_code"] == 2
    assert examine(machine.host(tmp_path))["exit_code"] == 1


def test_a_backend_that_is_not_installed_is_named_with_those_that_are(tmp_path):
    report = examine(Machine().host(tmp_path), wanted=["rocm"])
    assert (codes(report), report["exit_code"]) == (["CRT-5702"], 2)
    assert report["findings"][0]["evidence"] == "--backend rocm; installed: cpu"


def test_quick_asks_for_neither_bandwidth_nor_model(tmp_path):
    asked = []
    machine = Machine()
    host = machine.host(tmp_path)

    def child(args, environ, seconds):
        asked.append(args[0])
        return machine.answer(args, environ, seconds)

    report = examine(replace(host, child=child), quick=True)
    assert asked == ["opencl", "vulkan", "kernels"]
    assert report["exit_code"] == 0


def test_a_report_tells_neither_user_nor_host_nor_home(tmp_path):
    machine = Machine(
        environ={"XDG_CACHE_HOME": "/home/ada/cache", "TRITON_CACHE_DIR": "/data/ada/x"},
        read_only=("/home/ada",),
        backends=(CPU, replace(CPU, name="y", status="unusable", reason="lock of ada@analytical")),
    )
    report = examine(machine.host(tmp_path))
    text = json.dumps(report) + render(report)
    for word in ("ada", "analytical", "/home"):
        assert word not in text, word
    assert "~/cache" in text and "lock of <user>@<host>" in text
    # words that only contain a name stay
    assert "read_gb_per_s" in text and "usable_cores" in text


def test_a_report_is_plain_json_with_a_schema(tmp_path):
    report = examine(amd().host(tmp_path))
    assert json.loads(json.dumps(report)) == report
    assert report["schema"] == 1
    assert {"findings", "gpus", "tests", "verdict", "exit_code", "version"} <= set(report)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (120001, "gfx1201"),
        (110501, "gfx1151"),
        (110000, "gfx1100"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
    ],
)
def test_an_architecture_is_read_from_its_number(number, name):
    assert gfx_target(number) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [("11.0.0", "gfx1100"), ("12.0.1", "gfx1201"), ("9.0.10", "gfx90a"), ("11", ""), ("a.b.c", "")],
)
def test_an_override_is_read_as_an_architecture(text, name):
    assert gfx_of(text) == name


def test_integrated_architectures_are_told_from_cards():
    assert {"gfx1151", "gfx1036"} <= INTEGRATED
    assert not {"gfx1201", "gfx1100", "gfx1030"} & INTEGRATED


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("0", ["a"]),
        ("1,0", ["b", "a"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,7,1", ["a"]),
        ("GPU-b", ["b"]),
        ("GPU-", []),
        ("all", ["a", "b"]),
    ],
)
def test_a_visibility_list_ends_at_the_first_name_that_is_unknown(value, left):
    cards = [{"id": "a", "uuid": "GPU-a1"}, {"id": "b", "uuid": "GPU-b1"}]
    assert [g["id"] for g in visible(cards, value)] == left


@pytest.mark.parametrize(
    ("arch", "built", "fits"),
    [
        ("sm_120", ["sm_90", "sm_120"], True),
        ("sm_89", ["sm_80", "sm_90"], True),
        ("sm_120", ["sm_80", "sm_90"], False),
        ("sm_120", ["sm_90", "compute_90"], True),
        ("sm_75", ["sm_80", "compute_80"], False),
        ("gfx1201", ["gfx1100", "gfx1201"], True),
        ("gfx1151", ["gfx1100"], False),
    ],
)
def test_code_runs_on_its_own_architecture_or_by_the_vendors_rule(arch, built, fits):
    assert runs(arch, built) is fits


def test_the_kernels_of_a_right_device_agree_with_the_references():
    device = ToyDevice("toy", ["linear", "block_scan", "block_memory", "confidence_topk", "attend"])
    for op in device.kernels:
        row = check_op(device, OPS[op])
        assert row["right"] > 0 and not row["wrong"], row
    assert copy_problem(device) == ""


def test_a_kernel_that_is_wrong_in_one_number_is_caught():
    device = ToyDevice("toy", ["linear"])
    kernel = device.kernels["linear"]
    right = kernel.bind

    def bind(sig, operands, prepared, scratch):
        step = right(sig, operands, prepared, scratch)

        def spoiled():
            step()
            raw = operands["y"].buffer._bytes.view("<f4")
            raw[0] += 1

        return spoiled

    kernel.bind = bind
    assert check_op(device, OPS["linear"])["wrong"]


@pytest.mark.parametrize("op", ["linear", "expert_gemm"])
def test_products_that_are_wrong_in_fast_alone_are_caught(op):
    device = ToyDevice("toy", [op])
    kernel = device.kernels[op]
    right = kernel.bind

    def bind(sig, operands, prepared, scratch):
        step = right(sig, operands, prepared, scratch)

        def spoiled():
            step()
            operands["y"].buffer._bytes.view("<f4")[0] += 1

        return spoiled if sig.precision is Precision.FAST else step

    kernel.bind = bind
    row = check_op(device, OPS[op])
    assert row["right"] > 0 and row["precisions"] == ["exact", "fast"]
    assert row["wrong"] and all(" in fast: " in told for told in row["wrong"])


def test_products_that_a_device_does_not_offer_in_fast_are_refused_and_not_wrong():
    is_exact = {Precision.EXACT: "", Precision.FAST: "no matrix units"}
    device = ToyDevice("toy", ["linear"], refuse=lambda sig: is_exact[sig.precision])
    row = check_op(device, OPS["linear"])
    assert row["right"] == len(row["refused"]) > 0 and not row["wrong"]
    assert all(told.endswith(" in fast: no matrix units") for told in row["refused"])


def test_what_is_no_product_is_run_in_exact():
    assert check_op(ToyDevice("toy", ["rope"]), OPS["rope"])["precisions"] == ["exact"]


def test_a_kernel_that_raises_is_told_as_wrong():
    device = ToyDevice("toy", ["rms_norm"])

    def bind(*args):
        raise RuntimeError("launch failed")

    device.kernels["rms_norm"].bind = bind
    row = check_op(device, OPS["rms_norm"])
    assert row["right"] == 0 and "RuntimeError: launch failed" in row["wrong"][0]


def test_a_kernel_that_refuses_is_told_as_refused():
    device = ToyDevice("toy", ["rms_norm"], refuse=lambda sig: "D=64 exceeds 32")
    row = check_op(device, OPS["rms_norm"])
    assert (row["right"], row["wrong"]) == (0, []) and "D=64 exceeds 32" in row["refused"][0]


def test_a_lost_byte_in_a_copy_is_seen():
    device = ToyDevice("toy")
    honest = device.copy

    def copy(dst, dst_offset, src, src_offset, n):
        honest(dst, dst_offset, src, src_offset, n - 1)

    device.copy = copy
    assert copy_problem(device).startswith("1 of")


def test_a_child_that_hangs_is_ended_with_its_children():
    ran = Host.here().run(["sh", "-c", "sleep 60 & wait"], {"PATH": "/usr/bin:/bin"}, 0.3)
    assert ran.state == TIMED_OUT


def test_the_ends_of_a_program_are_told_apart():
    run = Host.here().run
    env = {"PATH": "/usr/bin:/bin"}
    assert run(["/nowhere/tool"], env, 5).state == ABSENT
    denied = run(["/etc/passwd"], env, 5)
    assert denied.how == "cannot be started: /etc/passwd: Permission denied"
    assert run(["sh", "-c", "exit 3"], env, 5).how == "exit code 3"
    crash = run(["sh", "-c", "kill -SEGV $$"], env, 5)
    assert crash.state == CRASHED and "SIGSEGV" in crash.how


def test_a_home_that_may_not_be_searched_is_one_that_cannot_be_written_to(monkeypatch, tmp_path):
    honest, home = os.stat, str(tmp_path)

    def stat(path, *args, **kwargs):
        if str(path).startswith(f"{home}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return honest(path, *args, **kwargs)

    # root may search every folder, so that a closed one has to be made up
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != home)
    here = Host.here()
    assert not here.writable(f"{home}/.cache/kernels")
    assert not here.exists(f"{home}/driver.so")
    assert here.disk(f"{home}/.cache/kernels")[0] == here.disk(home)[0] > 0


def test_every_code_is_in_the_table_once_with_its_own_words():
    assert len({c.what for c in CODES.values()}) == len(CODES)
    assert all(name == c.code for name, c in CODES.items())


def test_the_cpu_device_passes_here():
    answer = check("cpu", "cpu")
    assert answer["copy"] == "" and answer["declined"] == []
    assert all(op["right"] and not op["wrong"] for op in answer["ops"])
