"""The command line: what it passes on, prints, refuses and returns."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import clover_rt.api as api
from clover_rt import bench
from clover_rt.api import EndEvent, PrefillEvent, TextEvent, TokensEvent
from clover_rt.backend import DeviceInfo
from clover_rt.cli import COMMANDS, main
from clover_rt.engine import Fixed, PassEvent
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
    "tokens_per_s": 300.0,
    "ops": 9,
    "native_ops": 9,
    "host_ops": [],
}
TOLD = "built-in clover-tiny: a demo, not an assistant"
SUMMARY = (
    "diffusion · cpu · exact · 12 tokens · 4.00 tokens a pass · 1.50 passes a block · "
    "10.00 ms a pass · 300.0 tokens/s · native ops 9 of 9"
)
HEAVY = ("numpy", "tokenizers", "jinja2", "safetensors", "pluggy", "rich", "llvmlite")


class Response:
    """Gives events; an exception among them is raised, a callable is called."""

    about = {"mode": "diffusion", "prompt_tokens": 3}

    def __init__(self, events):
        self.events = iter(events)
        self.cancelled = self.closed = False

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.closed = True

    def __iter__(self):
        return self

    def __next__(self):
        event = next(self.events)
        if isinstance(event, BaseException):
            raise event
        if callable(event):
            event()
            return next(self)
        return event

    def cancel(self):
        self.cancelled = True


class Model:
    """Stands for an opened and for a bound checkpoint; answers with the events it was made with."""

    def __init__(self, events):
        self.source = SimpleNamespace(
            modes=("diffusion",),
            generation=SimpleNamespace(greedy=True),
            tokenizer="a tokenizer",
            checkpoint=SimpleNamespace(warnings=()),
        )
        self.events = events
        self.notes = ()
        self.binding = lambda on_progress: on_progress(1, 1, "a node")
        self.counted = {}
        self.loaded = self.asked = self.response = None
        self.closed = False

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.closed = True

    def order(self, prompt, **options):
        self.asked = {"prompt": prompt} | options
        return "the order"

    def bind(self, on_progress, on_note, **options):
        for note in self.notes:
            if on_note is not None:
                on_note(note)
        self.on_progress = on_progress
        self.binding(on_progress)
        self.loaded |= options
        return self

    def run(self, order):
        assert order == "the order"
        self.response = Response(self.events)
        return self.response

    def explain(self):
        return "the plan"

    def report(self):
        return {"nodes": 9}

    def tally(self):
        return self.counted

    def profile(self):
        return "the profile"


def end(reason="stop", **stats):
    return EndEvent((1, 2), reason, STATS | stats, "Hello")


@pytest.fixture
def model(monkeypatch):
    """Put a model in the place of the one that `open_model` would open."""
    model = Model([TextEvent("Hel"), TextEvent("lo"), end()])

    def open_model(path, **options):
        model.loaded = {"path": path} | options
        return model

    monkeypatch.setattr(api, "open_model", open_model)
    return model


def test_run_streams_the_text_and_ends_with_a_summary(model, capsys):
    assert main(["run", "Hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert err == f"{TOLD}\n{SUMMARY}\n"
    assert model.closed
    assert model.response.closed


def test_run_passes_every_flag_on(model):
    flags = "--model DIR --mode diffusion --max-new-tokens 9 --threshold 0.5 --block-size 16"
    flags += " --temperature 0.7 --top-k 3 --top-p 0.9 --seed 7 --system S --no-think"
    flags += " --backend b --device d --precision fast --strict --context 99 --threads 2 --profile"
    flags += " --stop A --stop B --no-controls -q"
    assert main(["run", "Hi", *flags.split()]) == 0
    assert model.loaded == {
        "path": "DIR",
        "backend": "b",
        "device": "d",
        "precision": "fast",
        "context": 99,
        "threads": 2,
        "strict": True,
        "profile": True,
    }
    assert model.asked == {
        "prompt": "Hi",
        "mode": "diffusion",
        "system": "S",
        "think": False,
        "max_new_tokens": 9,
        "threshold": 0.5,
        "block_size": 16,
        "temperature": 0.7,
        "top_k": 3,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["A", "B"],
        "controls": False,
    }


def test_self_spec_flags_are_passed_on(model):
    flags = ["--mode", "self-spec", "--accept", "typical", "--draft-width", "8", "--raw"]
    assert main(["run", "Hi", *flags]) == 0
    assert (model.asked["accept"], model.asked["draft_width"]) == ("typical", 8)
    assert model.asked["raw"] is True
    assert "think" not in model.asked


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
        ("--mode ar --debug-blocks FILE", "--debug-blocks"),
    ],
)
def test_a_flag_without_effect_is_an_error(model, capsys, flags, named):
    assert main(["run", "Hi", *flags.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1011")
    assert named in err
    assert model.loaded is None


@pytest.mark.parametrize("flags", ["--raw", "--system S", "--think", "--no-think"])
def test_token_ids_take_no_chat_flags(model, capsys, flags):
    assert main(["run", "--prompt-ids", "1,2", *flags.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1011")
    assert "--prompt-ids" in err


def test_flags_are_checked_again_where_the_checkpoint_chose_the_mode(model, capsys):
    model.source.modes = ("ar",)
    assert main(["run", "Hi", "--debug-blocks", "FILE"]) == 2
    assert "mode ar, this checkpoint's default" in capsys.readouterr().err
    assert model.asked is None


def test_a_seed_where_nothing_is_sampled_is_an_error(model, capsys):
    assert main(["run", "Hi", "--seed", "1"]) == 2
    assert "greedy decoding, this checkpoint's default" in capsys.readouterr().err
    model.source.generation = SimpleNamespace(greedy=False)
    assert main(["run", "Hi", "--seed", "1"]) == 0


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
    assert err.startswith("CRT-9000")
    assert "KeyError: 'x' at test_cli.py:" in err
    assert "CLOVER_RT_DEBUG=1" in err
    assert "Traceback" not in err


def test_the_trace_of_an_error_is_shown_on_demand(model, capsys, monkeypatch):
    monkeypatch.setenv("CLOVER_RT_DEBUG", "1")
    model.events = [KeyError("x")]
    assert main(["run", "Hi"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert "CRT-9000" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_response_and_the_end_is_still_told(model, capsys, number, code):
    before = signal.getsignal(number)
    model.events = [TextEvent("a"), lambda: os.kill(os.getpid(), number), end("cancelled")]
    assert main(["run", "Hi"]) == code
    assert model.response.cancelled
    assert model.closed
    out, err = capsys.readouterr()
    assert out == "a\n"
    assert err == f"{TOLD}\ncancelled · {SUMMARY}\n"
    assert signal.getsignal(number) is before


def test_a_second_interrupt_does_not_wait_for_the_end(model, capsys):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    model.events = [TextEvent("a"), twice, end("cancelled")]
    assert main(["run", "Hi"]) == 130
    assert model.response.closed
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("quiet", [[], ["-q"]], ids=["told", "quiet"])
def test_a_signal_while_kernels_compile_does_not_wait_for_the_pass(
    model, capsys, number, code, quiet
):
    def compiling():
        model.on_progress(0, 9, "compiling a kernel")
        os.kill(os.getpid(), number)
        pytest.fail("the pass went on")

    model.events = [compiling, end("cancelled")]
    assert main(["run", "Hi", *quiet]) == code
    assert model.response.closed and model.closed
    assert capsys.readouterr().err == "interrupted\n"


def test_a_signal_after_the_kernels_are_compiled_waits_for_the_pass(model, capsys):
    def ran():
        model.on_progress(0, 1, "compiling a kernel")
        model.on_progress(1, 1, "compiling")
        os.kill(os.getpid(), signal.SIGINT)

    model.events = [ran, end("cancelled")]
    assert main(["run", "Hi"]) == 130
    assert model.response.cancelled
    assert capsys.readouterr().err == f"{TOLD}\ncancelled · {SUMMARY}\n"


def test_an_interrupt_of_the_load_exits_130(model, monkeypatch, capsys):
    def interrupted(path, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "open_model", interrupted)
    assert main(["run", "Hi", "--json"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


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
        (["run", "--prompt-file", os.devnull], io.StringIO("x"), "is empty"),
    ],
    ids=["terminal", "empty pipe", "empty argument", "empty file"],
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


def test_the_prompt_comes_from_a_file(model, tmp_path):
    (tmp_path / "prompt.txt").write_text("from a file é\n", encoding="utf-8")
    assert main(["run", "--prompt-file", str(tmp_path / "prompt.txt")]) == 0
    assert model.asked["prompt"] == "from a file é\n"


def test_the_prompt_comes_as_ids(model):
    assert main(["run", "--prompt-ids", "1, 2,3"]) == 0
    assert model.asked["prompt"] == (1, 2, 3)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--prompt-file", "no/such/file"], "CRT-1026"),
        (["--prompt-file", "a\0b"], "CRT-1026"),
        (["Hi", "--prompt-ids", "1"], "CRT-1024"),
        (["Hi", "--prompt-file", "x"], "CRT-1024"),
        (["--prompt-ids", "1,x"], "CRT-1001"),
        (["--prompt-ids", ""], "CRT-1001"),
    ],
    ids=str,
)
def test_a_prompt_that_cannot_be_read_is_an_input_error(model, capsys, argv, code):
    assert main(["run", *argv]) == 2
    assert capsys.readouterr().err.startswith(code)
    assert model.loaded is None


def test_a_file_that_is_not_utf8_is_an_input_error(model, tmp_path, capsys):
    (tmp_path / "prompt.txt").write_bytes(b"a\xff")
    assert main(["run", "--prompt-file", str(tmp_path / "prompt.txt")]) == 2
    assert capsys.readouterr().err.startswith("CRT-1013")


def test_json_prints_lines_instead_of_the_text(model, capsys):
    model.events = [PrefillEvent(3, 3), TextEvent("Hello"), end()]
    assert main(["run", "Hi", "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["event"] for line in lines] == ["start", "prefill", "text", "end"]
    assert (lines[0]["schema"], lines[0]["model"]) == (1, "clover-tiny")
    assert lines[1] == {"event": "prefill", "done": 3, "total": 3}
    assert lines[-1] == {
        "event": "end",
        "text": "Hello",
        "tokens": [1, 2],
        "finish_reason": "stop",
        "stats": STATS,
    }
    assert err == ""


def test_json_ends_with_the_error_of_a_run_that_failed(model, capsys):
    model.events = [TextEvent("a"), BackendUnavailable("what", "evidence", "remedy", "CRT-3002")]
    assert main(["run", "Hi", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == {
        "event": "error",
        "code": "CRT-3002",
        "what": "what",
        "evidence": "evidence",
        "fix": "remedy",
        "exit_code": 3,
    }
    assert err.startswith("CRT-3002")


def test_json_lines_are_ascii(model, capsys):
    model.events = [TextEvent("é\N{GRINNING FACE}"), end()]
    assert main(["run", "Hi", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out.splitlines()[1])["text"] == "é\N{GRINNING FACE}"


PASSES = [
    PassEvent(0, 0, (Fixed(0, 5, 0.5), Fixed(2, 6, 1.0)), 1, 2.5, (5, None, 6)),
    PassEvent(0, 1, (Fixed(1, 7, 0.25),), 0, 2.0, (5, 7, 6)),
]


def test_debug_blocks_writes_a_line_a_pass_as_it_goes(model, tmp_path):
    file = tmp_path / "blocks.jsonl"
    seen = []
    model.events = [PASSES[0], lambda: seen.append(file.read_text()), PASSES[1], end()]
    assert main(["run", "Hi", "--debug-blocks", str(file)]) == 0
    assert seen[0].count("\n") == 1
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {
            "block": 0,
            "pass": 0,
            "accepted": 2,
            "min_confidence": 0.5,
            "mean_confidence": 0.75,
            "masks_left": 1,
            "ms": 2.5,
        },
        {
            "block": 0,
            "pass": 1,
            "accepted": 1,
            "min_confidence": 0.25,
            "mean_confidence": 0.25,
            "masks_left": 0,
            "ms": 2.0,
        },
    ]


def test_debug_blocks_into_no_folder_is_an_input_error(model, tmp_path, capsys):
    assert main(["run", "Hi", "--debug-blocks", str(tmp_path / "no" / "file")]) == 2
    assert capsys.readouterr().err.startswith("CRT-1027")


def test_warnings_of_the_checkpoint_go_to_stderr(model, capsys):
    model.source.checkpoint = SimpleNamespace(warnings=("a tensor is twice there",))
    assert main(["run", "Hi", "-q"]) == 0
    assert capsys.readouterr() == ("Hello\n", "warning: a tensor is twice there\n")


def fallback(op, steps, reason, how="host"):
    return {"op": op, "steps": steps, "how": how, "reason": reason}


def test_the_summary_tells_each_fallback_with_its_reason(model, capsys):
    model.events = [end(native_ops=5, host_ops=[fallback("attend", 4, "K=256 exceeds 128")])]
    assert main(["run", "Hi"]) == 0
    assert capsys.readouterr().err.endswith(
        " · native ops 5 of 9 · on the host: attend (K=256 exceeds 128)\n"
    )


def test_the_summary_groups_fallbacks_by_reason_and_stays_short(model, capsys):
    ops = [fallback(f"operation_{i}", 4, "the backend has no kernel for it") for i in range(20)]
    ops += [fallback("attend", 2, f"K={i} " + "exceeds " * 40, "reference") for i in range(9)]
    model.events = [end(native_ops=0, host_ops=ops)]
    assert main(["run", "Hi"]) == 0
    line = capsys.readouterr().err
    assert line.count("the backend has no kernel for it") == 1
    assert "operation_0, operation_1, operation_2 and 17 more (the backend" in line
    assert "run --explain tells all" in line
    assert len(line) < 600


def test_the_summary_counts_one_token_as_one(model, capsys):
    model.events = [end(tokens=1)]
    assert main(["run", "Hi"]) == 0
    assert " · 1 token · " in capsys.readouterr().err


def test_the_summary_tells_what_the_device_counted(model, capsys):
    model.counted = {"submissions": 3, "cut passes": 0}
    assert main(["run", "Hi"]) == 0
    assert " · 3 submissions · 0 cut passes · native ops " in capsys.readouterr().err


def test_ids_are_printed_where_there_is_no_tokenizer(model, capsys):
    model.source.tokenizer = None
    model.events = [TokensEvent((7, 8), (1.0, 1.0)), TokensEvent((9,), (1.0,)), end()]
    assert main(["run", "--prompt-ids", "5", "-q"]) == 0
    assert capsys.readouterr().out == "7,8,9\n"


def test_explain_and_profile_go_to_stderr(model, capsys):
    assert main(["run", "Hi", "--explain", "--profile", "-q"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert err == "the plan\nthe profile\n"


def test_explain_without_a_prompt_prints_only_the_plan(model, capsys):
    assert main(["run", "--explain"]) == 0
    assert capsys.readouterr() == ("", "the plan\n")
    assert model.asked is None


def test_explain_with_json_is_a_line(model, capsys):
    assert main(["run", "--explain", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"event": "plan", "schema": 1, "plan": {"nodes": 9}}
    assert main(["run", "Hi", "--explain", "--json"]) == 0
    lines = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["start", "plan", "text", "text", "end"]


@pytest.mark.parametrize("how", ["print", "descriptor", "child"])
def test_what_a_backend_prints_does_not_reach_the_output(model, capfd, how):
    def noise():
        if how == "print":
            print("noise")
        elif how == "descriptor":
            os.write(1, b"noise\n")
        else:
            subprocess.run(["echo", "noise"], check=True)

    model.events = [noise, TextEvent("Hello"), noise, end()]
    assert main(["run", "Hi", "--json", "-q"]) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["start", "text", "end"]
    assert err == "noise\nnoise\n"
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_a_full_disk_of_debug_blocks_names_the_file(model, capsys):
    model.events = [PASSES[0], end()]
    assert main(["run", "Hi", "--debug-blocks", "/dev/full"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1027")
    assert "/dev/full" in err
    assert "No space left" in err


ROWS = [
    Status("cpu", "cpu", "0.1.0", "1.0", "usable", "", devices=(DeviceInfo("cpu", "CPU name"),)),
    Status("bad", "bad", "", "", "refused", "it broke: boom", "mend it", "Traceback\nboom"),
]


@pytest.fixture
def installed(monkeypatch):
    """Put two statuses in the place of the installed backends."""
    monkeypatch.setattr(api, "survey", lambda: list(ROWS))


def test_backends_lists_status_devices_and_reasons(installed, capsys):
    assert main(["backends"]) == 0
    assert capsys.readouterr().out == (
        "cpu  usable  0.1.0  API 1.0\n"
        "     device cpu: CPU name\n"
        "bad  refused\n"
        "     it broke: boom\n"
        "     more: clover-rt backends --why bad\n"
    )


def test_backends_tells_engine_and_choice_of_a_device(monkeypatch, capsys):
    devices = (
        DeviceInfo("hip:0", "A", notes={"engine": "triton", "chosen": "the only AMD card"}),
        DeviceInfo("opencl:0", "A", notes={"engine": "opencl"}, only_by_name="hip:0 comes first"),
        DeviceInfo("opencl:1", "B", is_software=True),
    )
    row = Status("rocm", "rocm", "0.1.0", "1.1", "usable", "", devices=devices)
    monkeypatch.setattr(api, "survey", lambda: [row])
    assert main(["backends"]) == 0
    assert capsys.readouterr().out == (
        "rocm  usable  0.1.0  API 1.1\n"
        "      device hip:0: A (engine triton; the only AMD card)\n"
        "      device opencl:0: A (engine opencl; hip:0 comes first: only by --device)\n"
        "      device opencl:1: B (software: only by --device)\n"
    )


def test_run_tells_the_device_and_its_first_run_as_they_come_unless_it_is_quiet(model, capsys):
    note = "rocm on hip:0: A card, engine triton; the only AMD card"
    model.notes = (note,)
    seen = []
    model.binding = lambda on_progress: seen.append(capsys.readouterr().err)
    assert main(["run", "Hi"]) == 0
    assert seen == [f"{note}\n"]
    assert capsys.readouterr().err == f"{TOLD}\n{SUMMARY}\n"
    assert main(["run", "Hi", "-q"]) == 0
    assert (seen[1], capsys.readouterr().err) == ("", "")


def test_backends_why_tells_the_facts_of_each_device(monkeypatch, capsys):
    notes = {"engine": "triton", "arch": "gfx1201", "driver": "6.14", "chosen": "the only AMD card"}
    devices = (
        DeviceInfo("hip:0", "A", "discrete", 34_208_743_424, notes=notes),
        DeviceInfo("opencl:1", "B", is_software=True, notes={"platform": "PoCL"}),
    )
    row = Status("rocm", "rocm", "0.1.0", "1.1", "usable", "", devices=devices)
    monkeypatch.setattr(api, "survey", lambda: [row])
    assert main(["backends", "--why", "rocm"]) == 0
    assert capsys.readouterr().out == (
        "backend: rocm\nstatus: usable\nplugin: rocm\nversion: 0.1.0\napi: 1.1\n"
        "device hip:0: A (engine triton; the only AMD card)\n"
        "  kind: discrete\n"
        "  memory: 34.2 GB\n"
        "  arch: gfx1201\n"
        "  driver: 6.14\n"
        "device opencl:1: B (software: only by --device)\n"
        "  kind: cpu\n"
        "  platform: PoCL\n"
    )


def test_bench_tells_the_device_before_it_measures(monkeypatch, capsys):
    def report(setting, on_progress, on_note):
        on_note("card on card:0: A card")
        on_progress(0, 9, "compiling a kernel")
        raise BackendUnavailable("what", "evidence", "remedy", "CRT-3002")

    monkeypatch.setattr(bench, "report", report)
    assert main(["bench"]) == 3
    assert capsys.readouterr().err.startswith("card on card:0: A card\nCRT-3002")


def test_backends_why_shows_the_trace(installed, capsys):
    assert main(["backends", "--why", "bad"]) == 0
    out = capsys.readouterr().out
    assert "reason: it broke: boom\nfix: mend it\nTraceback\nboom\n" in out
    assert "cpu" not in out


def test_backends_why_of_an_unknown_name_lists_the_known(installed, capsys):
    assert main(["backends", "--why", "cpi"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("CRT-1010")
    assert "cpu, bad" in err
    assert "did you mean 'cpu'?" in err


def test_backends_json_is_one_object(installed, capsys):
    assert main(["backends", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    assert [b["status"] for b in data["backends"]] == ["usable", "refused"]
    assert data["backends"][0]["devices"][0]["id"] == "cpu"
    assert data["backends"][1]["trace"] == "Traceback\nboom"


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
