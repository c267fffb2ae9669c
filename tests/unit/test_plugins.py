"""Discovery isolates broken plugins; a named backend opens, or says why it cannot."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from clover_rt import plugins
from clover_rt.backend import API, Backend, Device, DeviceInfo, HostDevice, Probe
from clover_rt.errors import BackendUnavailable, OutOfMemory
from clover_rt.hookspecs import GROUP, hookimpl
from clover_rt.plugins import Stage, discover, open_device, survey, version_text

GPU = DeviceInfo("gpu:0", "Card", kind="discrete")
SOFT = DeviceInfo("soft", "Software", is_software=True)


class Opened(HostDevice):
    """A device that remembers its info."""

    kernels: dict = {}

    def __init__(self, info):
        self.name = info.name
        self.info = info


class Toy(Backend):
    """A backend that opens a device of the info it was given."""

    def __init__(self, name="toy", probe=None, api=API, error=None):
        self.name = name
        self.api = api
        self._probe = Probe((GPU,)) if probe is None else probe
        self._error = error

    def probe(self):
        if isinstance(self._probe, BaseException):
            raise self._probe
        return self._probe

    def open(self, info):
        if isinstance(self._error, BaseException):
            raise self._error
        return Opened(info) if self._error is None else self._error


@pytest.fixture
def plugin(monkeypatch):
    """Return a maker of entry points whose module has this hook."""

    def make(name, answer, hook="clover_rt_backends"):
        module = types.ModuleType(f"planted_{name}_{len(sys.modules)}")

        def call():
            if isinstance(answer, BaseException):
                raise answer
            return answer

        setattr(module, hook, hookimpl(call))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return EntryPoint(name, module.__name__, GROUP)

    return make


def missing(name):
    """Return an entry point whose module does not exist."""
    return EntryPoint(name, "clover_rt_no_such_module", GROUP)


def test_a_plugin_is_found_and_its_backend_opened(plugin):
    backend, device = open_device("toy", entry_points=[plugin("toy", [Toy()])], environ={})
    assert backend.name == "toy"
    assert device.info is GPU


@pytest.mark.parametrize(
    ("make", "stage", "says"),
    [
        (lambda p: missing("bad"), Stage.IMPORT, "clover_rt_no_such_module"),
        (lambda p: p("bad", [], hook="clover_rt_backend"), Stage.REGISTER, "clover_rt_backend"),
        (lambda p: p("bad", ValueError("boom")), Stage.HOOK, "ValueError: boom"),
        (lambda p: p("bad", SystemExit(3)), Stage.HOOK, "SystemExit: 3"),
        (lambda p: p("bad", ["no backend"]), Stage.HOOK, "'no backend'"),
        (lambda p: p("bad", [Toy(name=None)]), Stage.HOOK, "has no name"),
        (lambda p: p("bad", [Toy(api=1)]), Stage.HOOK, "not (major, minor)"),
    ],
    ids=["import", "misspelt hook", "raises", "exits", "wrong type", "no name", "no version"],
)
def test_a_broken_plugin_becomes_a_finding_and_stops_no_other(plugin, make, stage, says):
    found = discover([make(plugin), plugin("toy", [Toy()])], environ={})
    assert list(found.backends) == ["toy"]
    (finding,) = found.findings
    assert (finding.plugin, finding.stage, finding.code) == ("bad", stage, "CRT-3006")
    assert says in finding.evidence


def test_a_plugin_without_the_hook_is_a_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "planted_empty", types.ModuleType("planted_empty"))
    found = discover([EntryPoint("empty", "planted_empty", GROUP)], environ={})
    assert "implements no hook" in found.findings[0].evidence


def test_the_trace_of_a_broken_plugin_is_kept(plugin):
    found = discover([plugin("bad", ValueError("boom"))], environ={})
    (row,) = survey(found)
    assert row.status == "refused"
    assert "Traceback" in row.trace
    assert row.trace.rstrip().endswith("ValueError: boom")


def test_strict_plugins_raises_the_first_finding(plugin):
    points = [plugin("bad", ValueError("boom"))]
    with pytest.raises(BackendUnavailable) as caught:
        discover(points, environ={"CLOVER_RT_STRICT_PLUGINS": "1"})
    assert caught.value.code == "CRT-3006"
    assert "Traceback" in caught.value.evidence


def test_a_hook_that_raises_leaves_none_of_its_backends(plugin):
    def half():
        yield Toy()
        raise ValueError("half way")

    found = discover([plugin("half", half())], environ={})
    assert found.backends == {}
    assert "half way" in found.findings[0].evidence


@pytest.mark.parametrize(
    ("api", "loads", "fix"),
    [
        (API, True, ""),
        ((API[0], API[1] + 1), False, "update clover-rt"),
        ((API[0] + 1, 0), False, "update clover-rt"),
        ((API[0] - 1, 9), False, "update plugin 'toy'"),
    ],
    ids=["same", "newer minor", "newer major", "older major"],
)
def test_an_api_version_is_taken_up_to_this_minor_of_this_major(plugin, api, loads, fix):
    found = discover([plugin("toy", [Toy(api=api)])], environ={})
    assert ("toy" in found.backends) is loads
    assert (found.findings == ()) is loads
    if not loads:
        (finding,) = found.findings
        assert finding.code == "CRT-3007"
        assert f"{api[0]}.{api[1]}" in finding.evidence
        assert f"has {API[0]}.{API[1]}" in finding.evidence
        assert finding.fix == fix


def test_one_name_twice_is_a_finding_and_the_plugin_of_that_name_keeps_it(plugin):
    squatter, owner = Toy("toy"), Toy("toy")
    found = discover([plugin("acme", [squatter]), plugin("toy", [owner])], environ={})
    assert found.backends["toy"].backend is owner
    (finding,) = found.findings
    assert finding.code == "CRT-3008"
    assert "'toy'" in finding.evidence and "'acme'" in finding.evidence


def test_load_plugins_bisects(plugin):
    points = [plugin("a", [Toy("a")]), plugin("b", [Toy("b")])]
    assert list(discover(points, {"CLOVER_RT_LOAD_PLUGINS": " b, "}).backends) == ["b"]
    assert discover(points, {"CLOVER_RT_LOAD_PLUGINS": ""}) == plugins.Found({})
    found = discover(points, {"CLOVER_RT_LOAD_PLUGINS": "c"})
    assert found.findings[0].code == "CRT-3009"
    assert "a, b" in found.findings[0].evidence


def test_opening_one_backend_imports_no_other_plugin(plugin):
    points = [missing("other"), plugin("toy", [Toy()])]
    environ = {"CLOVER_RT_STRICT_PLUGINS": "1"}
    assert open_device("toy", entry_points=points, environ=environ)[1].info is GPU


def test_a_backend_is_found_under_an_entry_point_of_another_name(plugin):
    points = [plugin("acme", [Toy("x"), Toy("y")])]
    assert open_device("y", entry_points=points, environ={})[0].name == "y"


def refusal(points, name, device=None):
    """Return the error of opening a device."""
    with pytest.raises(BackendUnavailable) as caught:
        open_device(name, device, entry_points=points, environ={})
    return caught.value


def test_an_unknown_backend_lists_the_known_ones_and_the_nearest(plugin):
    error = refusal([plugin("cuda", [Toy("cuda")]), plugin("cpu", [Toy("cpu")])], "cudo")
    assert error.code == "CRT-3001"
    assert "cpu, cuda" in error.evidence
    assert "did you mean 'cuda'" in error.fix


def test_a_backend_whose_plugin_broke_says_how(plugin):
    error = refusal([plugin("toy", ValueError("boom"))], "toy")
    assert error.code == "CRT-3006"
    assert "boom" in error.evidence


def test_a_backend_refused_for_its_version_says_so_under_its_own_name(plugin):
    error = refusal([plugin("acme", [Toy("toy", api=(9, 0))])], "toy")
    assert error.code == "CRT-3007"


def test_an_unusable_backend_says_problem_and_fix(plugin):
    probe = Probe(problem="no card found", fix="insert one")
    error = refusal([plugin("toy", [Toy(probe=probe)])], "toy")
    assert (error.code, error.evidence, error.fix) == ("CRT-3002", "no card found", "insert one")


def test_a_probe_without_devices_or_problem_is_unusable(plugin):
    assert refusal([plugin("toy", [Toy(probe=Probe())])], "toy").code == "CRT-3002"


def test_a_probe_that_raises_is_told_as_the_plugins(plugin):
    points = [plugin("toy", [Toy(probe=RuntimeError("driver"))])]
    error = refusal(points, "toy")
    assert error.code == "CRT-3010"
    assert "RuntimeError: driver" in error.evidence
    (row,) = survey(discover(points, {}))
    assert row.status == "unusable"
    assert "driver" in row.trace


def test_an_open_that_raises_is_wrapped_with_the_plugins_name(plugin):
    error = refusal([plugin("toy", [Toy(error=RuntimeError("lost"))])], "toy")
    assert error.code == "CRT-3005"
    assert "plugin 'toy'" in error.evidence
    assert isinstance(error.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("probe", "says"),
    [(SystemExit(3), "SystemExit: 3"), (None, "returned None, not a Probe")],
    ids=["exits", "returns nothing"],
)
def test_a_probe_that_exits_or_returns_no_probe_is_told_as_the_plugins(plugin, probe, says):
    toy = Toy()
    # Toy's own None stands for a probe that works
    toy._probe = probe
    error = refusal([plugin("toy", [toy])], "toy")
    assert error.code == "CRT-3010"
    assert says in error.evidence


def test_strict_plugins_raises_for_a_probe_that_raises_and_not_for_absent_hardware(plugin):
    strict = {"CLOVER_RT_STRICT_PLUGINS": "1"}
    absent = discover([plugin("toy", [Toy(probe=Probe(problem="no card"))])], strict)
    assert survey(absent, strict)[0].status == "unusable"
    broken = discover([plugin("toy", [Toy(probe=RuntimeError("driver"))])], strict)
    with pytest.raises(BackendUnavailable, match="CRT-3010"):
        survey(broken, strict)


def test_an_open_that_exits_does_not_end_the_program(plugin):
    error = refusal([plugin("toy", [Toy(error=SystemExit(3))])], "toy")
    assert error.code == "CRT-3005"
    assert "SystemExit: 3" in error.evidence


class Nameless(HostDevice):
    kernels: dict = {}


class Bare(HostDevice):
    name = "bare"


class Odd(HostDevice):
    name = "odd"
    kernels = {"linear": len}


@pytest.mark.parametrize(
    ("opened", "says"),
    [
        ("a word", "'a word', not a clover_rt.backend.Device"),
        (Nameless(), "Nameless has no name"),
        (Bare(), "'bare' has no kernels"),
        (Odd(), "kernel 'linear' of device 'odd' is not"),
    ],
    ids=["no device", "no name", "no kernels", "no kernel"],
)
def test_what_a_plugin_opens_is_checked(plugin, opened, says):
    error = refusal([plugin("toy", [Toy(error=opened)])], "toy")
    assert error.code == "CRT-3011"
    assert says in error.evidence


def test_an_opened_device_says_which_plugin_it_came_from(plugin):
    device = open_device("toy", entry_points=[plugin("acme", [Toy()])], environ={})[1]
    assert device.origin == "plugin 'acme'"


def test_a_typed_error_crosses_as_it_is(plugin):
    error = OutOfMemory("a", "b", "c")
    with pytest.raises(OutOfMemory) as caught:
        open_device("toy", entry_points=[plugin("toy", [Toy(error=error)])], environ={})
    assert caught.value is error


def test_software_devices_open_only_by_name(plugin):
    points = [plugin("toy", [Toy(probe=Probe((SOFT, GPU)))])]
    assert open_device("toy", entry_points=points, environ={})[1].info is GPU
    assert open_device("toy", "soft", entry_points=points, environ={})[1].info is SOFT
    assert open_device("toy", "software", entry_points=points, environ={})[1].info is SOFT
    only = [plugin("toy", [Toy(probe=Probe((SOFT,)))])]
    error = refusal(only, "toy")
    assert error.code == "CRT-3004"
    assert "--device soft" in error.fix


def test_a_device_with_a_reason_opens_only_by_name(plugin):
    inside = DeviceInfo("igpu", "Graphics", "integrated", only_by_name="it is part of a processor")
    points = [plugin("toy", [Toy(probe=Probe((inside, GPU)))])]
    assert open_device("toy", entry_points=points, environ={})[1].info is GPU
    assert open_device("toy", "igpu", entry_points=points, environ={})[1].info is inside
    error = refusal([plugin("toy", [Toy(probe=Probe((inside, SOFT)))])], "toy")
    assert error.code == "CRT-3004"
    assert "igpu (Graphics): it is part of a processor; soft (Software): a software" in (
        error.evidence
    )
    assert error.fix == "name one to use it: --device igpu"


def test_an_opened_device_knows_what_the_probe_said(plugin):
    class Plain(Toy):
        def open(self, info):
            device = HostDevice()
            device.name, device.kernels = "plain", {}
            return device

    device = open_device("toy", entry_points=[plugin("toy", [Plain()])], environ={})[1]
    assert device.info is GPU


def test_an_unknown_or_ambiguous_device_lists_the_devices(plugin):
    twin = DeviceInfo("gpu:1", "Card")
    points = [plugin("toy", [Toy(probe=Probe((GPU, twin)))])]
    for wanted in ("gpu:9", "card"):
        error = refusal(points, "toy", wanted)
        assert error.code == "CRT-3003"
        assert "gpu:0 (Card); gpu:1 (Card)" in error.evidence
    assert open_device("toy", "gpu:1", entry_points=points, environ={})[1].info is twin


def test_an_unknown_device_is_told_with_what_the_backend_lacks_for_others(plugin):
    lone = replace(GPU, only_by_name="it is integrated;\nTriton: torch is missing: install it")
    error = refusal([plugin("toy", [Toy(probe=Probe((lone,)))])], "toy", "hip:0")
    assert error.code == "CRT-3003"
    assert error.evidence.endswith(
        "gpu:0 (Card): it is integrated; Triton: torch is missing: install it"
    )


def test_survey_names_status_version_and_devices(plugin):
    points = [plugin("toy", [Toy()]), plugin("off", [Toy("off", Probe(problem="no", fix="do"))])]
    off, toy = survey(discover(points, {}))
    assert (off.name, off.status, off.reason, off.fix) == ("off", "unusable", "no", "do")
    assert (toy.name, toy.status, toy.api) == ("toy", "usable", version_text(API))
    assert toy.devices == (GPU,)


def test_the_cpu_backend_comes_through_the_public_door():
    found = discover(environ={}, only="cpu")
    assert found.findings == ()
    backend, device = open_device("cpu", environ={})
    assert backend.name == "cpu"
    assert isinstance(device, Device)
    device.close()


def test_importing_the_module_imports_no_plugin():
    code = "import sys, clover_rt.plugins; print('clover_rt_cpu' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
