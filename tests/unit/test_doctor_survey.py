"""What a driver does to whoever asks it for devices does not reach doctor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clover_rt.doctor import examine
from clover_rt.doctor.survey import backends
from tests.unit.doctor_machines import CPU, HUNG, ROCM, SEGV, Machine

NAMES = ("cpu", "rocm")


def asked(tmp_path, **children):
    """Return a machine whose child answers so about all backends, and about each."""
    answers = {"backends " + name.replace("all", ""): told for name, told in children.items()}
    return Machine(children=answers).host(tmp_path)


def told(*rows):
    return {"backends": [row.as_dict() for row in rows]}


def test_backends_come_from_one_child_as_they_are(tmp_path):
    host = asked(tmp_path, all=told(CPU, ROCM))
    assert backends(host, NAMES) == [CPU, ROCM]


@pytest.mark.parametrize(("end", "how"), [(SEGV, "SIGSEGV"), (HUNG, "timed out after 30 s")])
def test_a_backend_that_breaks_its_child_is_told_and_the_others_are_asked(tmp_path, end, how):
    host = asked(tmp_path, all=end, cpu=told(CPU), rocm=end)
    cpu, rocm = backends(host, NAMES)
    assert cpu == CPU
    assert (rocm.name, rocm.status) == ("rocm", "broken") and how in rocm.reason
    report = examine(replace(host, backends=lambda: [cpu, rocm]))
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    assert [f["code"] for f in errors] == ["CRT-5701"]
    assert how in errors[0]["evidence"] and "driver" in errors[0]["remedy"]
    assert report["verdict"].startswith("Clover runs here on cpu (cpu)")


def test_where_every_child_breaks_no_backend_is_called_usable(tmp_path):
    host = asked(tmp_path, all=SEGV, cpu=SEGV, rocm=SEGV)
    assert {row.status for row in backends(host, NAMES)} == {"broken"}
