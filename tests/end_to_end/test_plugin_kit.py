"""A new backend works from the start; installed plugins that are broken harm nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clover_rt.backend import API
from clover_rt.cli import main
from clover_rt.errors import BadInput
from clover_rt.kit import check_name, write_backend
from tests.docs.walk import MAIN, plant

RAISES_AT_IMPORT = "raise RuntimeError('no driver')\n"
EXITS_AT_IMPORT = "import sys\nsys.exit(7)\n"
MISSPELT_HOOK = """
from clover_rt.hookspecs import hookimpl

@hookimpl
def clover_rt_backend():
    return []
"""
HOOK = """
from clover_rt.backend import Backend, DeviceInfo, HostDevice, Probe
from clover_rt.hookspecs import hookimpl

class Plain(Backend):
    name = "{name}"
    api = {api}

    def probe(self):
        {probe}

    def open(self, info):
        {open}

@hookimpl
def clover_rt_backends():
    {hook}
"""


def plugin(name="plain", api=API, probe="raise OSError('no bus')", open="pass", hook=None):
    hook = "return [Plain()]" if hook is None else hook
    return HOOK.format(name=name, api=api, probe=probe, open=open, hook=hook)


USABLE = "return Probe((DeviceInfo('d', 'device'),))"
# entry point -> (source, code of its finding, what its reason tells)
BROKEN = {
    "at_import": (RAISES_AT_IMPORT, "CRT-3006", "RuntimeError: no driver"),
    "exits": (EXITS_AT_IMPORT, "CRT-3006", "SystemExit: 7"),
    "at_register": (MISSPELT_HOOK, "CRT-3006", "clover_rt_backend"),
    "at_hook": (
        plugin(hook="yield Plain()\n    raise OSError('half way')"),
        "CRT-3006",
        "OSError: half way",
    ),
    "newer": (plugin("newer", (API[0], API[1] + 1)), "CRT-3007", f"API {API[0]}.{API[1] + 1}"),
    "twin": (plugin("cpu", probe=USABLE), "CRT-3008", "plugin 'cpu' has it"),
    "at_probe": (plugin("at_probe"), "CRT-3010", "OSError: no bus"),
    "probe_exits": (plugin("probe_exits", probe="raise SystemExit(1)"), "CRT-3010", "SystemExit"),
}


@pytest.fixture
def installed(tmp_path):
    """Return installer(name, source): the environment that a process sees the plugins in."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("CLOVER_RT")}
    environ["PYTHONPATH"] = str(tmp_path)

    def install(plugins):
        for name, source in plugins.items():
            (tmp_path / f"planted_{name}.py").write_text(source)
            info = tmp_path / f"planted_{name}-2.5.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: planted-{name}\nVersion: 2.5\n"
            )
            (info / "entry_points.txt").write_text(
                f"[clover_rt.backends]\n{name} = planted_{name}\n"
            )
        return environ

    return install


def clover_rt(environ, *argv):
    return subprocess.run(
        [sys.executable, "-c", MAIN, *argv],
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def test_broken_plugins_are_listed_with_their_reason_and_the_cpu_stays_usable(installed):
    environ = installed({name: source for name, (source, _, _) in BROKEN.items()})
    done = clover_rt(environ, "backends", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["backends"]
    by_plugin = {row["plugin"]: row for row in rows}
    assert by_plugin["cpu"]["status"] == "usable"
    for name, (_, _, says) in BROKEN.items():
        assert by_plugin[name]["status"] in ("refused", "unusable")
        assert says in by_plugin[name]["reason"]
        assert by_plugin[name]["fix"]
    # a hook that fails half-way leaves none of its backends behind
    assert "plain" not in {row["name"] for row in rows}
    done = clover_rt(environ, "run", "Hello", "--mode", "ar", "--max-new-tokens", "4")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", list(BROKEN))
def test_why_tells_all_of_a_broken_plugin(installed, name):
    source, _, says = BROKEN[name]
    done = clover_rt(installed({name: source}), "backends", "--why", name)
    assert done.returncode == 0, done.stderr
    assert f"plugin: {name}" in done.stdout
    assert says in done.stdout
    raised = name not in ("newer", "twin")
    assert ("Traceback (most recent call last)" in done.stdout) is raised


@pytest.mark.parametrize("name", list(BROKEN))
def test_strict_plugins_ends_at_the_first_broken_one_with_its_code(installed, name):
    source, code, says = BROKEN[name]
    environ = installed({name: source}) | {"CLOVER_RT_STRICT_PLUGINS": "1"}
    done = clover_rt(environ, "backends")
    assert done.returncode == 3
    assert done.stderr.startswith(code)
    assert says in done.stderr


def test_a_named_backend_that_is_broken_is_an_error_and_never_another_backend(installed):
    done = clover_rt(
        installed({"at_probe": BROKEN["at_probe"][0]}), "run", "--backend=at_probe", "x"
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("CRT-3010")


def test_an_open_that_fails_names_the_plugin_and_its_version(installed):
    source = plugin("bad", probe=USABLE, open="return 1 / 0")
    done = clover_rt(installed({"bad": source}), "run", "--backend", "bad", "x")
    assert done.returncode == 3
    assert done.stderr.startswith("CRT-3005")
    assert "plugin 'bad' 2.5: ZeroDivisionError" in done.stderr


def test_a_plugin_is_not_imported_by_help_or_by_a_run_on_the_cpu(installed):
    environ = installed({"exits": EXITS_AT_IMPORT}) | {"CLOVER_RT_STRICT_PLUGINS": "1"}
    assert clover_rt(environ, "--help").returncode == 0
    done = clover_rt(environ, "run", "Hello", "--mode", "ar", "--max-new-tokens", "2")
    assert done.returncode == 0, done.stderr


def test_a_new_backend_registers_and_its_tests_pass_with_everything_on_the_host(tmp_path):
    project, files = write_backend("my_card", API, tmp_path / "project")
    plant(tmp_path / "site", project)
    assert all((project / path).is_file() for path in files)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(project)])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    done = clover_rt(environ, "run", "--backend", "my_card", "--explain")
    assert done.returncode == 0
    assert "0 of 112 steps native" in done.stderr


def test_a_new_backend_is_formatted_and_names_the_api_that_it_was_written_for(tmp_path):
    project, _ = write_backend("my_card", API, tmp_path / "project")
    assert f"api = ({API[0]}, {API[1]})" in (project / "clover_rt_my_card/device.py").read_text()
    assert 'my_card = "clover_rt_my_card"' in (project / "pyproject.toml").read_text()
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--no-cache", "--line-length", "100"]
    for argv in (["format", "--check"], ["check", "--select", "E,F,I,UP,B,SIM"]):
        done = subprocess.run(
            [*ruff, *argv, *options, str(project)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_writes_here_and_says_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my_card"]) == 0
    out = capsys.readouterr().out
    assert Path("clover-rt-my-card", "clover_rt_my_card", "device.py").is_file()
    for line in ("cd clover-rt-my-card", "clover-rt backends --why my_card", "python -m pytest"):
        assert f"\n  {line}\n" in f"{out}\n"


@pytest.mark.parametrize(
    "name", ["", "My", "my-card", "1st", "class", "_x", "x_", "a__b", "é", "a/b", "x" * 41]
)
def test_a_name_that_makes_no_package_is_refused(name):
    with pytest.raises(BadInput, match="CRT-1050"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "card", "my_card", "x2", "a_1"])
def test_a_name_that_makes_a_package_is_taken(name):
    check_name(name)


LOUD = """
import os

def shout():
    print("printed by the plugin")
    os.write(1, b"written by the plugin\\n")

shout()
"""


def test_what_a_plugin_prints_leaves_the_json_whole(installed):
    opens = "shout(); from clover_rt_cpu.device import CpuDevice; return CpuDevice()"
    source = LOUD + plugin("loud", probe=f"shout(); {USABLE}", open=opens)
    environ = installed({"loud": source})
    for argv in (["backends"], ["run", "Hello", "--backend", "loud", "--mode", "ar"], ["fit"]):
        more = ["--backend", "loud"] if argv == ["fit"] else []
        done = clover_rt(environ, *argv, *more, "--json")
        assert done.returncode == 0, done.stderr
        if argv[0] == "run":
            assert all(json.loads(line) for line in done.stdout.splitlines())
        else:
            assert json.loads(done.stdout)
        assert "printed by the plugin" in done.stderr
        assert "written by the plugin" in done.stderr


@pytest.mark.parametrize("name", ["conformance", "cpu", "cuda", "rocm", "opencl", "vulkan"])
def test_a_name_that_clover_rt_keeps_for_itself_is_refused(name):
    with pytest.raises(BadInput, match="CRT-1058") as caught:
        check_name(name)
    assert name in caught.value.what


def test_a_folder_with_a_space_is_quoted_in_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my_card", "my card"]) == 0
    assert "\n  cd 'my card'\n" in capsys.readouterr().out


def test_the_name_of_an_installed_plugin_is_refused(tmp_path, capsys):
    assert main(["new-backend", "cpu", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("CRT-1058")
    with pytest.raises(BadInput, match="CRT-1051"):
        check_name("my_card", taken={"my_card"})
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    for target in (tmp_path, tmp_path / "kept.txt"):
        with pytest.raises(BadInput, match="CRT-1052"):
            write_backend("card", API, target)
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_a_folder_that_cannot_be_made_is_told_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="CRT-1053") as caught:
        write_backend("card", API, tmp_path / "file" / "below")
    assert "file" in caught.value.evidence
