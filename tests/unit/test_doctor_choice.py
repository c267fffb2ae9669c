"""doctor counts the device that `run` takes by itself, and one that is named; no other."""

from __future__ import annotations

import json

import pytest

from clover_rt.backend import DeviceInfo, Probe
from clover_rt.doctor import examine, render
from clover_rt.doctor.host import CRASHED, Ran
from clover_rt.errors import BackendUnavailable
from clover_rt.plugins import Status, choose
from tests.unit.doctor_machines import CPU, Machine

CARD = DeviceInfo("hip:0", "Radeon", "discrete")
SECOND = DeviceInfo("hip:1", "Radeon", "discrete", only_by_name="hip:0 comes first")
EQUAL = DeviceInfo("hip:2", "Radeon", "discrete")
INSIDE = DeviceInfo("hip:3", "Radeon 8060S", "integrated", only_by_name="it is part of a processor")
POCL = DeviceInfo("opencl:0", "pthread", "cpu", is_software=True)
MACHINES = {
    "a card": (CARD,),
    "a card and what comes behind it": (CARD, SECOND, INSIDE, POCL),
    "two equal cards": (CARD, EQUAL),
    "graphics of a processor": (INSIDE, POCL),
    "software": (POCL,),
}
BAD = Ran(CRASHED, -11)


def machine(*devices: DeviceInfo, bad: str = "") -> Machine:
    """Return a machine whose backend rocm has these devices, one of which fails its kernels."""

    def kernels(args, environ, seconds):
        return (
            BAD if args[:1] == ("kernels",) and args[2] == bad else answer(args, environ, seconds)
        )

    found = Machine(
        backends=(CPU, Status("rocm", "rocm", "1", "1.1", "usable", "", "", "", devices))
    )
    answer = found.answer
    found.answer = kernels
    return found


def codes(report):
    return [f["code"] for f in report["findings"]]


@pytest.mark.parametrize("name", MACHINES)
def test_a_backend_is_usable_where_run_takes_a_device_by_itself(name, tmp_path):
    devices = MACHINES[name]
    try:
        taken, reason = choose("rocm", Probe(devices), None).id, ""
    except BackendUnavailable as error:
        taken, reason = "", error.evidence.rpartition(": ")[2]
    report = examine(machine(*devices).host(tmp_path), ["rocm"])
    assert [row["device"] for row in report["tests"]] == [d.id for d in devices]
    assert all(row["passed"] for row in report["tests"])
    counted = [row["device"] for row in report["tests"] if not row["only_by_name"]]
    assert counted == ([taken] if taken else [])
    assert report["exit_code"] == (0 if taken else 1)
    assert report["verdict"].startswith(f"Clover runs here on rocm ({taken})") == bool(taken)
    if not taken:
        assert reason in report["verdict"]
        assert f"--device {devices[0].id}" in report["verdict"]
    assert report["verdict"] in render(report)


@pytest.mark.parametrize("devices", [(CARD, SECOND), (CARD, EQUAL)])
def test_a_second_card_does_not_make_up_for_the_one_that_run_takes(devices, tmp_path):
    report = examine(machine(*devices, bad="hip:0").host(tmp_path), ["rocm"])
    assert (codes(report), report["exit_code"]) == (["CRT-5802"], 1)
    assert "hip:0 comes first" in report["verdict"]


def test_a_device_that_is_named_is_tested_alone_and_counts(tmp_path):
    for told in ("opencl:0", "PTHREAD"):
        host = machine(CARD, POCL, bad="hip:0").host(tmp_path / told)
        report = examine(host, ["rocm"], device=told)
        assert [row["device"] for row in report["tests"]] == ["opencl:0"]
        assert (codes(report), report["exit_code"]) == ([], 0)
        assert report["verdict"] == "Clover runs here on rocm (opencl:0)"
        assert report["device"] == told


def test_a_device_is_sought_in_every_backend_where_none_is_requested(tmp_path):
    report = examine(machine(CARD, POCL).host(tmp_path), device="opencl:0")
    assert [(row["backend"], row["device"]) for row in report["tests"]] == [("rocm", "opencl:0")]
    assert report["exit_code"] == 0


def test_a_device_that_is_not_there_is_named_with_those_that_are(tmp_path):
    report = examine(machine(CARD, POCL).host(tmp_path), ["rocm"], device="hip:7")
    assert (codes(report), report["exit_code"]) == (["CRT-5705"], 2)
    (found,) = report["findings"]
    assert found["evidence"] == "--device hip:7; devices: hip:0 (Radeon), opencl:0 (pthread)"


def test_one_backend_of_several_is_enough_and_the_others_devices_are_told(tmp_path):
    report = examine(machine(POCL).host(tmp_path), ["cpu", "rocm"])
    assert (codes(report), report["exit_code"]) == (["CRT-5703"], 0)
    assert report["verdict"].startswith("Clover runs here on cpu (cpu)")
    assert "rocm" not in report["verdict"]
    assert "`--backend rocm --device opencl:0` uses it" in json.dumps(report["findings"])
