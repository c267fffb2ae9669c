"""docs/json.md has every field that `run --json` prints, and no other."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from clover_rt.api import loading
from clover_rt.api.first_run import FirstRun
from clover_rt.cli import main
from clover_rt.cli.events import SCHEMA
from clover_rt.ops import OPS
from tests.toy import ToyDevice

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
ONE = ("--max-new-tokens", "1", "--context", "64")


def documented():
    """Return heading -> the fields of its table."""
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        name, _, body = section.partition("\n")
        cells = re.findall(r"^\| (`.*?) \|", body, re.MULTILINE)
        found[name] = {field for cell in cells for field in re.findall(r"`(\w+)`", cell)}
    return found


FIELDS = documented()


COMMANDS = {
    "diffusion": ["Count from 3 to 9.", "--mode", "diffusion"],
    "ar": ["Count from 3 to 9.", "--mode", "ar", "--stop", "6", "--explain"],
    "self-spec": ["Count from 3 to 9.", "--mode", "self-spec"],
    "error": ["Hello", "--backend", "nothing"],
}


def printed(argv):
    """Run a command; return its JSON lines."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["run", *argv, "--json", "-q"])
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture(scope="module")
def runs():
    """Return the lines of each command."""
    return {name: printed(argv) for name, argv in COMMANDS.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_line_has_the_documented_fields_and_no_other(runs, name):
    lines = runs[name]
    assert lines[-1]["event"] == ("error" if name == "error" else "end")
    for line in lines:
        assert set(line) == FIELDS[line["event"]], line["event"]
        assert set(line.get("stats", FIELDS["stats"])) == FIELDS["stats"]
        plan = line.get("plan", {})
        assert set(plan) in (set(), FIELDS["placement"])
        for denoising in line.get("passes", []):
            assert set(denoising) == FIELDS["passes"]


def test_every_documented_event_was_seen(runs):
    seen = {line["event"] for lines in runs.values() for line in lines}
    inside = {"stats", "first_run", "placement", "host_ops", "passes", "example"}
    assert seen == set(FIELDS) - inside


def test_a_first_run_has_the_documented_fields():
    assert {field.name for field in fields(FirstRun)} == FIELDS["first_run"]


def test_an_example_has_the_documented_fields(capsys):
    assert main(["run", "--examples", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"schema", "examples"}
    assert {field for example in found["examples"] for field in example} == FIELDS["example"]


def test_the_schema_number_is_the_documented_one(runs):
    assert runs["ar"][0]["schema"] == SCHEMA
    assert f"Schema {SCHEMA}." in PAGE


def test_a_fallback_has_the_documented_fields(monkeypatch):
    def toy(name, device=None):
        kernels = [op for op, spec in OPS.items() if spec.reference]
        return None, ToyDevice(name, [k for k in kernels if name != "toy" or k != "combine"])

    monkeypatch.setattr(loading, "open_device", toy)
    (start,) = printed(["--prompt-ids", "5", "--backend", "toy", "--mode", "ar", *ONE])[:1]
    (host,) = start["host_ops"]
    assert set(host) == FIELDS["host_ops"]
    assert (host["op"], host["steps"], host["how"]) == ("combine", 5, "host")
    assert host["reason"]
    assert start["native_ops"] + host["steps"] == start["ops"]
