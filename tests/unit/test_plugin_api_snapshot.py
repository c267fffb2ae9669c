"""The plugin API changes only with its version; see tests/unit/plugin_api.py for how."""

from __future__ import annotations

import pytest

from clover_rt.backend import API
from tests.unit import plugin_api
from tests.unit.plugin_api import adding, breaking, problem, read, surface

HOW = __doc__


def test_the_surface_is_the_committed_one_unless_the_version_was_raised():
    old, old_api = read()
    assert problem(old, old_api, surface(), API) == "", HOW


def test_the_snapshot_is_up_to_date():
    old, old_api = read()
    now = surface()
    assert (old_api, old) == (API, now), f"{HOW}: {breaking(old, now) + adding(old, now)}"


def test_the_snapshot_holds_what_authors_write_and_use():
    now = surface()
    for name in (
        "clover_rt.backend.Kernel.bind(prepared)",
        "clover_rt.backend.Device.alignment",
        "clover_rt.backend.DeviceInfo.is_software",
        "clover_rt.backend.host_kernel(prepare)",
        "clover_rt.backend.Usage.EDGE",
        "clover_rt.hookspecs.clover_rt_backends",
        "clover_rt.errors.OutOfMemory.of(free)",
        "clover_rt.spec.Signature.dtype",
        "ops.linear.residual",
    ):
        assert name in now
    assert now["clover_rt.backend.Device.alignment"] == "attribute: int = 64"
    assert not any(" at 0x" in text for text in now.values())


OLD = {
    "m.f": "function -> int",
    "m.f(x)": "positional or keyword: int (required)",
    "m.C": "class(ABC)",
    "ops.linear": "primitive, attributes none",
}


@pytest.mark.parametrize(
    ("change", "breaks"),
    [
        ({"m.f": None}, True),
        ({"m.f(x)": "positional or keyword: float (required)"}, True),
        ({"m.f(y)": "keyword-only: int (required)"}, True),
        ({"m.f(y)": "keyword-only: int = 3"}, False),
        ({"m.C.run": "abstract method -> None (required)"}, True),
        ({"m.C.run": "method -> None"}, False),
        ({"ops.linear.bias": "input edge [N], optional (required)"}, True),
        ({"ops.new": "primitive", "ops.new.x": "input edge [T] (required)"}, False),
        ({"m.g": "function -> int", "m.g(x)": "keyword-only: int (required)"}, False),
    ],
    ids=[
        "removed",
        "another type",
        "required parameter",
        "parameter with default",
        "abstract method",
        "method with default",
        "operand of an old op",
        "new op",
        "new function",
    ],
)
def test_a_change_needs_the_version_that_says_so(change, breaks):
    new = {k: v for k, v in (OLD | change).items() if v is not None}
    assert bool(breaking(OLD, new)) is breaks
    assert problem(OLD, (1, 2), new, (1, 2)) != ""
    assert (problem(OLD, (1, 2), new, (1, 3)) == "") is not breaks
    assert problem(OLD, (1, 2), new, (2, 0)) == ""


def test_no_change_needs_no_version_and_none_goes_back():
    assert problem(OLD, (1, 2), OLD, (1, 2)) == ""
    assert "went back" in problem(OLD, (1, 2), OLD, (1, 1))


def test_the_snapshot_is_not_written_over_an_unannounced_change(tmp_path, monkeypatch):
    path = tmp_path / "api.json"
    assert plugin_api.write(path) == ""
    before = path.read_text()
    changed = surface() | {"clover_rt.backend.more": "function -> int"}
    monkeypatch.setattr(plugin_api, "surface", lambda: changed)
    assert "clover_rt.backend.more: added" in plugin_api.write(path)
    assert path.read_text() == before
    monkeypatch.setattr(plugin_api, "API", (API[0], API[1] + 1))
    assert plugin_api.write(path) == ""
    assert read(path) == (changed, (API[0], API[1] + 1))
