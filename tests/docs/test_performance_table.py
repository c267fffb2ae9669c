"""The README's tables of performance are what the results say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLE = runpy.run_path(str(DOCS / "performance_table_reference.py"))


def test_the_readme_is_up_to_date() -> None:
    assert (DOCS.parent / "README.md").read_text(encoding="utf-8") == TABLE["page"](), (
        "run: python docs/performance_table_reference.py"
    )


def passes(model: str, preview: float, rate: float, experts: tuple[int, ...]) -> dict[str, Any]:
    """Return a report of `clover-rt bench` with figures of our own."""
    timed = {"ms_median": preview, "distinct_experts_by_layer": list(experts)}
    result = {"preview": timed, "preview_of_masks": timed, "decode": timed}
    settings = {"model": model, "precision": "fast", "repeats": 9, "chunk": 512, "prompt": 64}
    return {
        "cpu": "a processor",
        "cores": 2,
        "settings": settings,
        "bandwidth": {"gb_per_s": 20.0},
        "peak_gb": preview / 100,
        "results": [
            {"depth": 0, **result, "prefill": {"tokens": 64, "tokens_per_s": 1.0}},
            {"depth": 576, **result, "prefill": {"tokens": 512, "tokens_per_s": rate}},
        ],
    }


def test_passes_are_medians_of_the_rounds_by_checkpoint() -> None:
    reports = [
        passes("m-q4", 100.0, 400.0, (90, 80)),
        passes("m-q8", 200.0, 300.0, (70, 91)),
        passes("m-q4", 130.0, 440.0, (90, 80)),
        passes("m-q8", 260.0, 340.0, (70, 91)),
    ]
    lines = list(TABLE["passes_table"](reports))
    text = " ".join(lines).replace("\n", " ")
    assert "a processor with 2 cores" in text and "9 passes in each of 2 rounds" in text
    assert "| | q4 | q8 |" in lines
    assert (
        "| preview of 32 distinct tokens, 70 to 91 experts a layer | 115.0 ms | 230.0 ms |" in lines
    )
    assert "| prefill of 512 tokens | 420 tokens/s | 320 tokens/s |" in lines
    assert "| memory at most | 1.3 GB | 2.6 GB |" in lines


@pytest.fixture
def compared() -> dict[str, Any]:
    """Return a result of vs_llama_cpp.py, of one format and two peers."""

    def row(name: str, peer: str, value: float, counts: bool = True) -> dict[str, Any]:
        return {"name": name, "peer": peer, "value": value, "counts": counts}

    rows = [
        row("preview, coreset on", "no-amx", 0.5),
        row("preview, coreset off", "no-amx", 0.75, False),
        row("what the depth adds", "no-amx", 0.25),
        row("decode", "native", 0.9),
        row("decode, share of the bandwidth", "", 0.8),
        row("MB above the files", "", 321.4),
    ]
    peers = {
        name: {"build_number": 7, "ms": {"preview": {"median": 200.0}, "decode": {"median": 20.0}}}
        for name in ("no-amx", "native")
    }
    ours = {"preview_on": {"median": 100.0}, "decode": {"median": 18.0}}
    cache = {"decode_weights_mb": 600.0, "last_level_cache_mb": 300.0}
    return {
        "cpu": "a processor",
        "cores": 2,
        "settings": {"rows": 32, "prefill": 512, "threads": 2, "rounds": 15, "depth": 8192},
        "results": {"q4": {"ours_ms": ours, "peers": peers, "rows": rows, "cache": cache}},
    }


def test_a_peer_has_its_own_table_with_ratios_and_times(compared: dict[str, Any]) -> None:
    lines = list(TABLE["peer_table"](compared))
    assert lines.count("| | q4 |") == 2
    assert "| preview, coreset on | 0.50 (100.0 of 200.0 ms) |" in lines
    assert "| what 8192 tokens before it add to a preview | 0.25 |" in lines
    assert "| decode | 0.90 (18.0 of 20.0 ms) |" in lines
    # what is of no peer is in both
    assert lines.count("| weights read by a decode, over its time and the bandwidth | 80% |") == 2
    assert lines.count("| memory of `run` beyond the checkpoint's files | 321 MB |") == 2


def test_weights_that_the_cache_holds_in_part_are_told(compared: dict[str, Any]) -> None:
    told = "reads {} MB of weights, and the last-level cache has 300 MB"
    for mb, is_told in ((600.0, False), (500.0, True)):
        compared["results"]["q4"]["cache"]["decode_weights_mb"] = mb
        text = " ".join(TABLE["peer_table"](compared)).replace("\n", " ")
        assert (told.format(f"{mb:.0f}") in text) == is_told


def test_a_figure_that_does_not_count_is_not_shown(compared: dict[str, Any]) -> None:
    lines = list(TABLE["peer_table"](compared))
    assert "| preview, coreset off | does not count |" in lines


def test_the_comparison_comes_with_its_file(compared: dict[str, Any], tmp_path: Path) -> None:
    reports = {"reports": [passes("m-q4", 100.0, 400.0, (90,))]}
    (tmp_path / TABLE["PASSES"]).write_text(json.dumps(reports))
    assert not [line for line in TABLE["tables"](tmp_path) if "llama.cpp" in line]
    (tmp_path / TABLE["PEER"]).write_text(json.dumps(compared))
    assert [line for line in TABLE["tables"](tmp_path) if "llama.cpp" in line]
