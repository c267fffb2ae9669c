"""Timing passes: what a report holds, and which reports may be compared."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clover_rt import __version__, bench
from clover_rt.api import open_model
from clover_rt.backend import HostDevice
from clover_rt.bench import machine
from clover_rt.bench.passes import Bench
from clover_rt.cli import main
from clover_rt.errors import BadInput
from clover_rt.ops import OPS
from clover_rt.plan.reference import ReferenceKernel

TIMED = {"ms_median": 8.0, "ms_min": 7.0, "gb_per_s": 2.0, "distinct_experts_by_layer": [3, 5]}


def made(**settings: Any) -> dict[str, Any]:
    """Return a report as `bench` writes it, with figures of our own."""
    return {
        "benchmark": "pass",
        "schema": 1,
        "cpu": "a processor",
        "cores": 2,
        "settings": {"model": "m", "backend": "cpu", "device": None, "precision": "exact"}
        | {"depths": [0], "chunk": 512, "repeats": 5, "seed": 0, "rows": 32, "prompt": 64}
        | {"variables": {}}
        | settings,
        "results": [
            {
                "depth": 0,
                "preview": dict(TIMED),
                "decode": {**TIMED, "ms_median": 2.0},
                "prefill": {"tokens": 64, "tokens_per_s": 128.0},
            }
        ],
    }


def test_ratios_are_the_second_over_the_first() -> None:
    a, b = made(), made(precision="fast", model="m-q4")
    b["results"][0]["preview"]["ms_median"] = 4.0
    b["results"][0]["prefill"]["tokens_per_s"] = 256.0
    found = bench.compare(a, b)
    ratios = {r["kind"]: r["ratio"] for r in found["results"]}
    assert ratios == {"preview": 0.5, "decode": 1.0, "prefill": 0.5}
    assert (found["a"]["precision"], found["b"]["precision"]) == ("exact", "fast")
    assert "m-q4 on cpu, precision fast" in bench.render_comparison(found)


def test_a_comparison_tells_the_variables_that_were_set() -> None:
    found = bench.compare(made(), made(variables={"CLOVER_RT_CPU_ISA": "avx2"}))
    a, b = bench.render_comparison(found).splitlines()[:2]
    assert a == "a: m on cpu, precision exact"
    assert b == "b: m on cpu, precision exact, CLOVER_RT_CPU_ISA=avx2"


@pytest.mark.parametrize(
    ("name", "value"), [("chunk", 256), ("depths", [0, 8]), ("seed", 1), ("repeats", 9)]
)
def test_reports_of_unlike_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        bench.compare(made(), made(**{name: value}))
    assert caught.value.code == "CRT-1093"
    assert f"{name}: " in caught.value.evidence and repr(value) in caught.value.evidence


def test_reports_of_two_processors_are_refused() -> None:
    other = copy.deepcopy(made())
    other["cpu"] = "another processor"
    with pytest.raises(BadInput) as caught:
        bench.compare(made(), other)
    assert "another processor" in caught.value.evidence


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        ("{", "Expecting"),
        ("[1]", "benchmark"),
        ('{"benchmark": "open"}', "benchmark"),
        ('{"benchmark": "pass", "schema": 9}', "schema is 9"),
        ('{"benchmark": "pass", "schema": 1, "settings": {}}', "results"),
        (json.dumps(made() | {"settings": {}}), "settings have no field 'model'"),
        (json.dumps(made() | {"settings": 3}), "settings are 3"),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, text: str, evidence: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        bench.read(file)
    assert caught.value.code == "CRT-1092" and evidence in caught.value.evidence
    assert str(file) in caught.value.what


def test_the_command_times_the_built_in_model_and_its_report_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOVER_RT_CPU_ISA", "numpy")
    file = tmp_path / "report.json"
    assert main(["bench", "--depths", "0", "--repeats", "1", "--out", str(file)]) == 0
    assert "preview, 32 rows" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["settings"]["variables"]["CLOVER_RT_CPU_ISA"] == "numpy"
    assert report["clover_rt"] == __version__
    preview = report["results"][0]["preview"]
    # what must be read over the time it took, by definition
    rate = preview["gigabytes"] / (preview["ms_min"] / 1e3)
    assert preview["gb_per_s"] == pytest.approx(rate)
    assert preview["of_bandwidth"] == pytest.approx(rate / report["bandwidth"]["gb_per_s"])
    assert main(["bench", "--compare", str(file), str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert {r["ratio"] for r in rows} == {1.0}


def test_a_depth_beyond_the_context_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--depths", "100000"]) == 2
    assert "CRT-1091" in capsys.readouterr().err


def test_flags_of_a_measurement_have_no_effect_beside_compare(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "--compare", "a.json", "b.json", "--chunk", "8"]) == 2
    assert "--chunk" in capsys.readouterr().err


@pytest.fixture
def opened() -> Iterator[Any]:
    found = open_model(context=256)
    yield found
    found.close()


def test_a_decode_reads_every_weight_but_experts_and_embeddings_that_it_does_not_use(
    opened: Any,
) -> None:
    model = opened.bind()
    driven = Bench(model, 0, 64)
    driven.fill(64)
    told = driven.timed(driven.kinds(1)["decode"], 1)
    config = opened.source.config
    want = 0
    for name, value in model.plan.graph.values.items():
        if value.weight is None:
            continue
        last = name.rsplit(".", 1)[-1].removeprefix("weight:")
        share = 1.0
        if last.startswith("expert_"):
            share = config.experts_per_token / config.experts
        elif last == "embed":
            share = 1 / config.vocab_size
        elif last in ("right", "logit_scale", "history_bias", "history_c"):
            share = 0.0
        want += math.prod(value.shape) * value.weight.format.codes_dtype.itemsize * share
    assert told["weight_gigabytes"] * 1e9 == pytest.approx(want)


def test_layers_that_run_whole_are_charged_with_the_experts_that_they_use(opened: Any) -> None:
    def told(driven: Bench) -> dict[str, Any]:
        driven.fill(64)
        return driven.timed(driven.kinds(1)["preview_of_masks"], 1)

    parts = told(Bench(opened.bind(), 0, 64))
    kernels, moe = opened.device.kernels, ReferenceKernel(OPS["moe"], opened.device)
    opened.device.kernels = {**kernels, "moe": moe}
    whole = told(Bench(opened.bind(), 0, 64))
    assert whole["launches"] < parts["launches"]
    assert whole["distinct_experts_by_layer"] == parts["distinct_experts_by_layer"]
    assert whole["weight_gigabytes"] == pytest.approx(parts["weight_gigabytes"])
    # rows of masks choose few experts, and the rows between parts are not counted of a whole
    assert max(whole["distinct_experts_by_layer"]) < opened.source.config.experts
    assert whole["gigabytes"] < parts["gigabytes"]


def test_a_copy_moves_its_bytes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Slow(HostDevice):
        """Copies a megabyte in a second."""

        name = "slow"

        def copy(self, dst: Any, dst_offset: int, src: Any, src_offset: int, n: int) -> None:
            now[0] += n / 1e6

    monkeypatch.setattr(machine, "COPIED_BYTES", 1 << 16)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: now[0])
    found = machine.copy_bandwidth(Slow())
    assert (found["bytes"], found["gb_per_s"]) == (1 << 16, pytest.approx(2e-3))
