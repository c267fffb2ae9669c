"""The command line: what it passes on, prints, refuses and returns."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from dataclasses import dataclass, field

import pytest

from clover_rt.backend import DeviceInfo
from clover_rt.cli import COMMANDS, main
from clover_rt.errors import BackendUnavailable
from clover_rt.plugins import Status

STATS = {
    "mode": "diffusion",
    "device": "cpu",
    "precision": "exact",
    "tokens": 12,
    "passes": 3,
    "blocks": 2,
    "tokens_per_pass": 4.0,
    "ms_per_pass": 10.0,
    "decode_ms": 40.0,
}
HEAVY = ("numpy", "tokenizers", "jinja2", "safetensors", "pluggy", "rich", "llvmlite")


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class End:
    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    stats: dict = field(default_factory=dict)


class Model:
    """Gives the events it was made with and notes what it was asked."""

    def __init__(self, events):
        self.events = events
        self.loaded = self.asked = None
        self.closed = self.stopped = False

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.closed = True

    def generate(self, prompt, **options):
        self.asked = {"prompt": prompt} | options
        try:
            for event in self.events:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.stopped = True

    def explain(self):
        return "the plan"

    def profile(self):
        return "the profile"


@pytest.fixture
def model(monkeypatch):
    """Put a model in the place of the runtime behind the command line."""
    model = Model([Text("Hel"), Text("lo"), End((1, 2), "Hello", "stop", STATS)])

    def load(path, **options):
        model.loaded = {"path": path} | options
        return model

    api = types.ModuleType("clover_rt.api")
    api.load, api.TextEvent, api.EndEvent = load, Text, End
    monkeypatch.setitem(sys.modules, "clover_rt.api", api)
    return model


def test_run_streams_the_text_and_ends_with_a_summary(model, capsys):
    assert main(["run", "Hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert err == (
        "diffusion · cpu · exact · 12 tokens · 4.00 tokens a pass · 1.50 passes a block · "
        "10.00 ms a pass · 300.0 tokens/s\n"
    )
    assert model.closed


def test_run_passes_every_flag_on(model):
    flags = "--model DIR --mode diffusion --max-new-tokens 9 --threshold 0.5 --block-size 16"
    flags += " --temperature 0.7 --top-k 3 --top-p 0.9 --seed 7 --system S --no-think"
    flags += " --backend b --device d --precision fast --strict --context 99 --profile"
    flags += " --stop A --stop B --no-controls -q"
    assert main(["run", "Hi", *flags.split()]) == 0
    assert model.loaded == {
        "path": "DIR",
        "backend": "b",
        "device": "d",
        "precision": "fast",
        "context": 99,
        "strict": True,
        "profile": True,
    }
    assert model.asked == {
        "prompt": "Hi",
        "mode": "diffusion",
        "raw": False,
        "system": "S",
        "think": False,
        "max_new_tokens": 9,
        "threshold": 0.5,
        "block_size": 16,
        "accept": "exact",
        "draft_width": None,
        "temperature": 0.7,
        "top_k": 3,
        "top_p": 0.9,
        "seed": 7,
        "stop": ("A", "B"),
        "controls": False,
    }


def test_self_spec_flags_are_passed_on(model):
    flags = ["--mode", "self-spec", "--accept", "typical", "--draft-width", "8", "--raw"]
    assert main(["run", "Hi", *flags]) == 0
    assert (model.asked["accept"], model.asked["draft_width"]) == ("typical", 8)
    assert (model.asked["raw"], model.asked["think"]) == (True, None)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--draft-width 8", "--draft-width"),
        ("--accept exact", "--accept"),
        ("--mode diffusion --draft-width 8", "--draft-width"),
        ("--mode ar --threshold 0.5", "--threshold"),
        ("--mode ar --block-size 8", "--block-size"),
        ("--mode self-spec --temperature 1", "--temperature"),
        ("--mode self-spec --seed 0", "--seed"),
        ("--raw --system S", "--system"),
        ("--raw --think", "--think"),
        ("--temperature 0 --top-p 0.5", "--top-p"),
    ],
)
def test_a_flag_without_effect_is_an_error(model, capsys, flags, named):
    assert main(["run", "Hi", *flags.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1011")
    assert named in err
    assert model.loaded is None


def test_self_spec_takes_an_explicit_greedy(model):
    assert main(["run", "Hi", "--mode", "self-spec", "--temperature", "0"]) == 0
    assert model.asked["temperature"] == 0


def test_an_error_is_three_lines_and_its_exit_code(model, capsys):
    model.events = [BackendUnavailable("what", "evidence", "remedy", "CRT-3002")]
    assert main(["run", "Hi"]) == 3
    err = capsys.readouterr().err
    assert err == "CRT-3002: what\n  found: evidence\n  fix: remedy\n"
    assert model.closed


def test_an_unexplained_error_is_a_bug_with_its_trace(model, capsys):
    model.events = [KeyError("x")]
    assert main(["run", "Hi"]) == 4
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "CRT-9000" in err


def test_an_interrupt_ends_the_run_and_exits_130(model, capsys):
    model.events = [Text("a"), KeyboardInterrupt()]
    assert main(["run", "Hi"]) == 130
    assert model.stopped
    assert model.closed
    assert capsys.readouterr().out == "a"


def test_an_interrupt_while_printing_stops_the_generation(model, monkeypatch):
    class Keys(io.StringIO):
        def write(self, text):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", Keys())
    assert main(["run", "Hi"]) == 130
    assert model.stopped


def test_the_prompt_comes_from_a_pipe(model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped\n"))
    assert main(["run"]) == 0
    assert model.asked["prompt"] == "piped\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("dash"))
    assert main(["run", "-"]) == 0
    assert model.asked["prompt"] == "dash"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("argv", "stdin", "says"),
    [
        (["run"], Terminal(), "stdin is a terminal"),
        (["run"], io.StringIO(), "stdin is empty"),
        (["run", ""], io.StringIO("x"), "the argument is empty"),
    ],
    ids=["terminal", "empty pipe", "empty argument"],
)
def test_no_prompt_is_an_error_that_teaches(model, monkeypatch, capsys, argv, stdin, says):
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1012")
    assert says in err
    assert 'clover-rt run "Hello"' in err


def test_a_pipe_that_is_not_utf8_is_an_input_error(model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    assert main(["run"]) == 2
    assert capsys.readouterr().err.startswith("CRT-1013")


def test_json_prints_one_object_instead_of_the_text(model, capsys):
    assert main(["run", "Hi", "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "schema": 1,
        "text": "Hello",
        "tokens": [1, 2],
        "finish_reason": "stop",
        "stats": STATS,
    }
    assert err == ""


def test_explain_and_profile_go_to_stderr(model, capsys):
    assert main(["run", "Hi", "--explain", "--profile", "-q"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert err == "the plan\nthe profile\n"


def test_explain_without_a_prompt_prints_only_the_plan(model, capsys):
    assert main(["run", "--explain"]) == 0
    assert capsys.readouterr() == ("", "the plan\n")
    assert model.asked is None


ROWS = [
    Status("cpu", "cpu", "0.1.0", "1.0", "usable", "", devices=(DeviceInfo("cpu", "CPU name"),)),
    Status("bad", "bad", "", "", "refused", "it broke: boom", "mend it", "Traceback\nboom"),
]


@pytest.fixture
def installed(monkeypatch):
    """Put two statuses in the place of the installed backends."""
    api = types.ModuleType("clover_rt.api")
    api.survey = lambda: list(ROWS)
    monkeypatch.setitem(sys.modules, "clover_rt.api", api)


def test_backends_lists_status_devices_and_reasons(installed, capsys):
    assert main(["backends"]) == 0
    assert capsys.readouterr().out == (
        "cpu  usable  0.1.0  API 1.0\n"
        "     device cpu: CPU name\n"
        "bad  refused\n"
        "     it broke: boom\n"
        "     more: clover-rt backends --why bad\n"
    )


def test_backends_why_shows_the_trace(installed, capsys):
    assert main(["backends", "--why", "bad"]) == 0
    out = capsys.readouterr().out
    assert "reason: it broke: boom\nfix: mend it\nTraceback\nboom\n" in out
    assert "cpu" not in out


def test_backends_why_of_an_unknown_name_lists_the_known(installed, capsys):
    assert main(["backends", "--why", "nope"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1010")
    assert "cpu, bad" in err


def test_backends_json_is_one_object(installed, capsys):
    assert main(["backends", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    assert [b["status"] for b in data["backends"]] == ["usable", "refused"]
    assert data["backends"][0]["devices"][0]["id"] == "cpu"
    assert data["backends"][1]["trace"] == "Traceback\nboom"


def test_version_prints_versions(capsys):
    assert main(["version"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("clover-rt ")
    assert f"python {sys.version_info.major}.{sys.version_info.minor}" in out


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(argv):
    code = (
        "import sys\nfrom clover_rt.cli import main\n"
        f"try:\n    main({argv!r})\nexcept SystemExit as e:\n    assert e.code == 0\n"
        f"heavy = [m for m in sys.modules if m.split('.')[0] in {HEAVY!r}]\n"
        "print('heavy:', heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: clover-rt")
    assert done.stderr == "heavy: []\n"


def test_a_closed_pipe_ends_without_a_trace():
    code = (
        "import sys, os\nfrom clover_rt.cli import main, version\n"
        "def gone(args):\n    raise BrokenPipeError\n"
        "version.main = gone\nsys.exit(main(['version']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 141
    assert done.stderr == ""
