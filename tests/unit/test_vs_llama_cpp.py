"""Beside llama.cpp: what is divided by what, which figures count, and which meet their target."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILTIN = ROOT / "clover_rt" / "builtin" / "clover_tiny"
ARGS = argparse.Namespace(threads=2, repeats=3, depth=8192, precision="exact")
# a peer that answers with 10 ms for each row, a tenth more a thousand tokens of depth
PEER = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
depth = int(given["-d"])
tests = [(int(n), 0) for n in given["-p"].split(",")] + [(0, int(given["-n"]))]
out = []
for rows, new in tests:
    if rows + new:
        ns = int((rows + new) * 10e6 * (1 + depth / 10000))
        out.append(dict(n_prompt=rows, n_gen=new, samples_ns=[ns, ns, 9 * ns],
                        build_number=7, build_commit="abc", cpu_info="a processor",
                        model_type="a model", model_n_params={parameters}, asked=given))
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("vs_llama_cpp")
    sys.path.remove(str(ROOT / "benchmarks"))


def report(
    preview: float, depths: tuple[int, ...] = (0,), experts: tuple[int, ...] = (90, 100)
) -> dict[str, Any]:
    """Return what `clover-rt bench` gives, with figures of our own."""
    results = []
    for depth in depths:
        result = {
            "depth": depth,
            "preview": {
                "ms_median": preview + depth / 100,
                "distinct_experts_by_layer": list(experts),
            },
            "preview_of_masks": {"ms_median": preview / 2},
            "decode": {"ms_median": 10.0, "weight_gigabytes": 0.2},
            "prefill": {"tokens": 512, "tokens_per_s": 1024.0},
        }
        results.append(result)
    bandwidth = {"gb_per_s": 25.0, "last_level_cache_bytes": 300_000_000}
    return {"bandwidth": bandwidth, "results": results}


def measured(bench: Any, rounds: int = 3, experts: tuple[int, ...] = (90, 100)) -> Any:
    """Return rounds of made figures: ours 100 ms a preview, the peer's 200 and 400."""
    out = bench.Measured(peak={"peak_mb": 1500.0, "files_mb": 1200.0})
    for _ in range(rounds):
        bench.add(out, report(100.0, (0, 576, 8192), experts), "on")
        bench.add(out, report(150.0, (0,), (150, 160)), "off")
    for peer, scale in (("no-amx", 1.0), ("native", 2.0)):
        out.about[peer] = {"build_number": 7}
        for name, ms in (("preview", 200.0), ("decode", 20.0), ("prefill", 1000.0)):
            out.peers[peer][name] += [ms * scale] * rounds
    out.peers["no-amx"]["preview@8192"] += [456.0] * rounds
    return out


def row(bench: Any, found: Any, name: str, peer: str = "no-amx", pair: str = "q4") -> Any:
    return next(r for r in bench.rows_of(pair, found, 8192) if (r.name, r.peer) == (name, peer))


def test_ratios_are_our_median_over_the_peers(bench: Any) -> None:
    found = measured(bench)
    found.ours["preview_on"] = [90.0, 100.0, 900.0]
    assert row(bench, found, "preview, coreset on").value == 100 / 200
    assert row(bench, found, "preview, coreset off").value == 150 / 200
    assert row(bench, found, "decode").value == 10 / 20
    # 512 tokens at 1024 a second
    assert row(bench, found, "prefill").value == 500 / 1000
    assert row(bench, found, "prefill", "native").value == 500 / 2000


def test_what_a_depth_adds_is_the_median_of_the_rounds_differences(bench: Any) -> None:
    found = measured(bench)
    # a slow round has a slow start too: only its difference may count
    found.ours["preview_on"] = [100.0, 1000.0, 100.0]
    found.ours["preview_on@8192"] = [164.0, 1064.0, 300.0]
    assert row(bench, found, "what the depth adds").value == 64 / 256


def test_decode_is_judged_by_its_weights_over_time_and_bandwidth(bench: Any) -> None:
    told = row(bench, measured(bench), "decode, share of the bandwidth", "")
    # 0.2 GB in 10 ms are 20 GB/s of 25
    assert told.value == pytest.approx(0.8)
    assert (told.target, told.met) == (0.75, True)
    assert row(bench, measured(bench), told.name, "", "q8").met
    assert measured(bench).cache == {"decode_weights_mb": 200.0, "last_level_cache_mb": 300.0}


def test_memory_is_what_run_holds_beyond_the_files(bench: Any) -> None:
    told = row(bench, measured(bench), "MB above the files", "")
    assert (told.value, told.target, told.met) == (300.0, 400.0, True)


@pytest.mark.parametrize("experts", [(90, 74), (90, 111), (163, 163)])
def test_a_preview_with_too_few_or_too_many_experts_does_not_count(
    bench: Any, experts: tuple[int, ...]
) -> None:
    found = measured(bench)
    bench.add(found, report(100.0, (0,), experts), "on")
    told = row(bench, found, "preview, coreset on")
    assert (told.counts, told.met) == (False, None)
    # what was measured without the coreset is not touched by it
    assert row(bench, found, "preview, coreset off").counts


def test_only_the_first_peer_and_the_formats_have_targets(bench: Any) -> None:
    found = measured(bench)
    assert row(bench, found, "decode").met
    assert row(bench, found, "decode", "native").target is None
    assert row(bench, found, "decode", pair="bf16").target is None


def test_every_row_of_the_table_is_there_for_each_format(bench: Any) -> None:
    for pair in ("q4", "q8"):
        rows = [r for r in bench.rows_of(pair, measured(bench), 8192) if r.target is not None]
        assert [r.name for r in rows] == [
            "preview, coreset on",
            "preview, coreset off",
            "decode",
            "prefill",
            "what the depth adds",
            "decode, share of the bandwidth",
            "MB above the files",
        ]


@pytest.fixture
def peer(bench: Any, tmp_path: Path) -> Any:
    binary = tmp_path / "llama-bench"
    binary.write_text(PEER.format(python=sys.executable, parameters=1_000_000))
    binary.chmod(0o755)
    return bench.Peer("no-amx", binary)


def test_a_peer_is_asked_for_the_same_rows_at_both_depths(
    bench: Any, peer: Any, tmp_path: Path
) -> None:
    found = bench.Measured()
    pair = bench.Pair("q4", BUILTIN, tmp_path / "a.gguf")
    bench.add_peer(found, peer, pair, [0, 8192], ARGS)
    assert dict(found.peers["no-amx"]) == {
        "preview": [320.0],
        "prefill": [5120.0],
        "decode": [10.0],
        "preview@8192": [pytest.approx(320 * 1.8192)],
    }
    assert found.about["no-amx"]["build_commit"] == "abc"


def test_another_geometry_is_refused(bench: Any, tmp_path: Path) -> None:
    pair = bench.Pair("q4", BUILTIN, tmp_path / "a.gguf")
    with pytest.raises(SystemExit, match="not one geometry"):
        bench.check_geometry(pair, {"model_n_params": 1_000})


def test_a_folder_with_the_coreset_off_is_the_same_checkpoint_with_another_config(
    bench: Any, tmp_path: Path
) -> None:
    out = bench.with_coreset(BUILTIN, False, tmp_path)
    config = json.loads((out / "config.json").read_text())
    assert config.pop("moe_block_coreset_enabled") is False
    before = json.loads((BUILTIN / "config.json").read_text())
    before.pop("moe_block_coreset_enabled", None)
    assert config == before
    assert (out / "model.safetensors").resolve() == (BUILTIN / "model.safetensors").resolve()


def test_what_is_stopped_reports_its_whole_rounds(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [measured(bench, rounds=1), measured(bench, rounds=1)]

    def one_round(*_: Any) -> dict[str, Any]:
        if not left:
            raise KeyboardInterrupt
        return {"q4": left.pop()}

    monkeypatch.setattr(bench, "one_round", one_round)
    monkeypatch.setattr(bench, "peak_of_run", lambda *_: {"peak_mb": 1.0, "files_mb": 1.0})
    out = tmp_path / "out.json"
    given = ["--peer", "no-amx=BIN", "--pair", f"q4={BUILTIN},a.gguf", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["vs_llama_cpp.py", *given])
    bench.main()
    told = json.loads(out.read_text())
    assert told["settings"]["rounds"] == 2
    assert told["results"]["q4"]["ours_ms"]["preview_on"]["rounds"] == 2
    with pytest.raises(KeyboardInterrupt):
        bench.main()


@pytest.mark.full
def test_a_whole_run_writes_every_row(
    bench: Any, peer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUILTIN, folder)
    weights = bench.Checkpoint.open(folder).tensors.values()
    text = PEER.format(
        python=sys.executable, parameters=sum(bench.math.prod(w.shape) for w in weights)
    )
    peer.binary.write_text(text)
    out = tmp_path / "out.json"
    given = ["--peer", f"no-amx={peer.binary}", "--pair", f"q4={folder},{tmp_path}/a.gguf"]
    given += ["--rounds", "1", "--repeats", "1", "--depth", "1024", "--precision", "exact"]
    monkeypatch.setattr(sys, "argv", ["vs_llama_cpp.py", *given, "--out", str(out)])
    bench.main()
    found = json.loads(out.read_text())["results"]["q4"]
    assert len(found["rows"]) == 7
    # four layers of a few experts: far from what the targets are for
    assert not found["rows"][0]["counts"]
    assert found["memory"]["peak_mb"] > found["memory"]["files_mb"] > 0
